"""Figures of what goes on inside: heat maps over images, quantities along training, and what f_w learned."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from itta.report.plot_style import COLOURS, hide_spines, pyplot, save_figure


def plot_heats(
    path: Path, pictures: np.ndarray, rows: Sequence[str], heats: Mapping[str, np.ndarray], title: str
) -> Path:
    """A row per image: the image, then in grey under each of its maps, each scaled to its own largest value.

    Maps with values on both sides of zero are drawn red and blue.
    """
    n, m = len(pictures), 1 + len(heats)
    figure, grid = pyplot().subplots(
        n, m, figsize=(1.35 * m + 0.9, 1.35 * n + 0.6), squeeze=False, layout="constrained"
    )
    grey = pictures.mean(-1)  # or its colours would be taken for those of the map
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


def plot_training(path: Path, steps: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray]) -> Path:
    """A panel for each quantity: every value faint, and the mean over a window."""
    figure, axes = pyplot().subplots(len(values), 1, figsize=(6, 1.5 * len(values) + 0.4), squeeze=False, sharex=True)
    for ax, (name, v) in zip(axes[:, 0], values.items()):
        x = steps[name]
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


def plot_fw(
    path: Path, h: np.ndarray, out: np.ndarray, start: np.ndarray, kinds: Mapping[str, int], title: str
) -> Path:
    """f_w(h) of each dimension over its range, [points, dims]; what that was at the start; and the kinds."""
    figure, (left, middle, right) = pyplot().subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    figure.suptitle(title, fontsize=9)
    faint = max(0.15, min(1.0, 30 / h.shape[1]))
    left.plot(h, out, color=COLOURS["other"], lw=0.5, alpha=faint)
    widest = int((h[-1] - h[0]).argmax())
    left.plot(h[:, widest], start[:, widest], color=COLOURS["adapted"], lw=1.2, ls="--", label="at the start")
    left.set_ylabel("f_w(h), a line for each dimension", fontsize=8)
    left.legend(fontsize=7, frameon=False)
    middle.plot(h, out - start, color=COLOURS["other"], lw=0.5, alpha=faint)
    middle.set_ylabel("change since the start", fontsize=8)
    for ax in (left, middle):
        ax.set_xlabel("h, an entry of z − z'", fontsize=8)
    y = np.arange(len(kinds))[::-1]
    right.barh(y, list(kinds.values()), color=COLOURS["third"], height=0.6)
    for position, count in zip(y, kinds.values()):
        right.text(count, position, f" {count}", va="center", fontsize=8)
    right.set_yticks(y, list(kinds), fontsize=8)
    right.set_xlabel("dimensions", fontsize=8)
    for ax in (left, middle, right):
        ax.tick_params(labelsize=7)
        hide_spines(ax)
    return save_figure(figure, path)
