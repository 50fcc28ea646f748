"""The logs of a training: every logged quantity along the steps, in numbers and as a figure."""

from pathlib import Path
from typing import Any

import numpy as np

from itta import records
from itta.records import RECORDS, STEPS
from itta.report.plot_style import COLOURS, hide_spines, pyplot, save_figure
from itta.schema import numbers_of

Curves = dict[str, tuple[np.ndarray, np.ndarray]]  # name -> steps and values


def read_curves(model: Path) -> tuple[Curves, str | None]:
    """Every logged quantity along training, and the file that has it: of each step, or means between evaluations."""
    if (model / STEPS).is_file():
        lines, source = list(records.read_steps(model / STEPS)), STEPS
    elif (model / RECORDS).is_file():
        found = records.read(model / RECORDS)
        lines, source = [{"step": r.step, **numbers_of(r.logs)} for r in found], RECORDS
    else:
        return {}, None
    names = dict.fromkeys(name for line in lines for name in line if name != "step")
    curves: Curves = {}
    for name in names:
        there = [(line["step"], line[name]) for line in lines if name in line]
        curves[name] = (np.array([s for s, _ in there]), np.array([v for _, v in there]))
    return curves, source


def curve_summary(values: np.ndarray) -> dict[str, Any]:
    """The mean of a logged quantity, of its first and its last tenth, and the share of positive values."""
    n = max(1, len(values) // 10)
    return {
        "values": len(values),
        "mean": float(values.mean()),
        "first_tenth": float(values[:n].mean()),
        "last_tenth": float(values[-n:].mean()),
        "positive": float((values > 0).mean()),
    }


def plot_curves(path: Path, curves: Curves) -> Path:
    """Plot a panel for each quantity: every value faintly, and the running mean."""
    figure, axes = pyplot().subplots(len(curves), 1, figsize=(6, 1.5 * len(curves) + 0.4), squeeze=False, sharex=True)
    for ax, (name, (x, v)) in zip(axes[:, 0], curves.items()):
        ax.plot(x, v, color=COLOURS["other"], lw=0.8, alpha=0.4, marker="o" if len(v) < 30 else "", ms=3)
        window = max(1, len(v) // 20)
        if window > 1:
            smooth = np.convolve(v, np.ones(window) / window, "valid")
            ax.plot(x[window - 1 :], smooth, color=COLOURS["other"], lw=1.6, label=f"mean of {window}")
            ax.legend(fontsize=7, frameon=False)
        if name == "cosine":
            ax.axhline(0, color=COLOURS["plain"], lw=0.8, ls="--")
        ax.set_ylabel(name, fontsize=8)
        ax.tick_params(labelsize=7)
        hide_spines(ax)
    axes[-1, 0].set_xlabel("step", fontsize=8)
    return save_figure(figure, path)
