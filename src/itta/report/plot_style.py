"""The look of our figures: colours, hatches, markers, and how a figure is saved.

Series differ by more than colour: hatches, markers and labels survive a grey printer.
"""

import warnings
from functools import cache
from pathlib import Path
from typing import Any

from itta.errors import InputError
from itta.files import complete, make_folder, refuse_to_replace

PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999")  # Okabe and Ito's
HATCHES = ("", "///", "...", "\\\\\\", "xxx", "+++", "ooo", "---")
MARKERS = "osD^vPX*"
FIGURE_SUFFIXES = (".png", ".pdf", ".svg")
COLOURS = {"plain": "#8a8a8a", "adapted": "#d1495b", "other": "#30638e", "third": "#edae49"}


@cache
def pyplot() -> Any:
    """Matplotlib, imported on first use: most commands draw nothing, and the import is slow."""
    import matplotlib

    matplotlib.use("Agg")  # draws into files: needs no screen
    import matplotlib.pyplot as plt

    return plt


def check_figure_name(path: Path) -> None:
    """Refuse a name whose ending no figure has, or a place where no figure can be written."""
    if path.suffix.lower() not in FIGURE_SUFFIXES:
        raise InputError(f"{path} is not a name for a figure: end it in {', '.join(FIGURE_SUFFIXES)}.")
    if path.exists() or path.is_symlink():
        refuse_to_replace(path, "figure")


def save_figure(figure: Any, path: Path) -> Path:
    """Write a figure and close it."""
    check_figure_name(path)
    make_folder(path.parent)
    with complete(path, "figure") as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a name in another script is drawn as boxes
        kind = path.suffix[1:].lower()
        figure.savefig(temporary, format=kind, dpi=150, bbox_inches="tight", facecolor="white")
    pyplot().close(figure)
    return path


def hide_spines(ax: Any) -> None:
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def series_style(i: int) -> tuple[str, str, str]:
    """Colour, hatch and marker of the i-th series; the first 64 all differ in colour or hatch."""
    n = len(PALETTE)
    return PALETTE[i % n], HATCHES[(i + i // n) % n], MARKERS[(i + i // n) % n]
