"""Plots of heat maps over images."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from itta.report.plot_style import pyplot, save_figure


def plot_heats(
    path: Path, pictures: np.ndarray, rows: Sequence[str], heats: Mapping[str, np.ndarray], title: str
) -> Path:
    """Plot a row for each image: the image, then each map over a grey copy, scaled to the largest value of the map.

    If a map has negative values, all maps are red and blue.
    """
    n, m = len(pictures), 1 + len(heats)
    figure, grid = pyplot().subplots(
        n, m, figsize=(1.35 * m + 0.9, 1.35 * n + 0.6), squeeze=False, layout="constrained"
    )
    grey = pictures.mean(-1)  # the colours of the image would look like those of the map
    signed = any((maps < 0).any() for maps in heats.values())
    for i, row in enumerate(grid):
        row[0].set_ylabel(rows[i], fontsize=8, rotation=0, ha="right", va="center")
        for ax, name in zip(row, ("input", *heats)):
            ax.imshow(pictures[i] if name == "input" else grey[i], cmap="gray", vmin=0, vmax=1)
            ax.set_xticks([])
            ax.set_yticks([])
            if i == 0:
                ax.set_title(name.replace(", ", "\n"), fontsize=8)
        for ax, maps in zip(row[1:], heats.values()):
            draw_heat(ax, maps[i], signed)
    figure.suptitle(title, fontsize=8)
    return save_figure(figure, path)


def draw_heat(ax: Any, heat: np.ndarray, signed: bool) -> None:
    largest = np.abs(heat).max()
    if largest > 0:
        cmap, low = ("RdBu_r", -1) if signed else ("turbo", 0)
        ax.imshow(heat / largest, cmap=cmap, vmin=low, vmax=1, alpha=0.6)
    else:
        ax.text(0.5, 0.5, "no heat", transform=ax.transAxes, ha="center", va="center", fontsize=7)
