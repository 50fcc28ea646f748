"""Figures: what the domains look like, and how accuracy runs along a stream."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # files only: no screen is needed
import matplotlib.pyplot as plt
import numpy as np

COLOURS = {"plain": "#8a8a8a", "adapted": "#d1495b", "other": "#30638e", "third": "#edae49"}


def save(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, bbox_inches="tight", facecolor="white")
    plt.close(figure)
    return path


def draw_styles(grid: Any, images: Mapping[str, np.ndarray], columns: Sequence[str], target: str) -> None:
    """Rows of pictures, one row per domain; the target's row is framed in red."""
    for i, (domain, row) in enumerate(images.items()):
        for j, image in enumerate(row):
            ax = grid[i][j]
            ax.imshow(image)
            ax.set_xticks([])
            ax.set_yticks([])
            for spine in ax.spines.values():
                spine.set_color(COLOURS["adapted"] if domain == target else "#dddddd")
                spine.set_linewidth(1.5 if domain == target else 0.5)
            if i == 0:
                ax.set_title(columns[j], fontsize=6)
            if j == 0:
                label = f"{domain}\n(target)" if domain == target else f"{domain}\n(source)"
                ax.set_ylabel(label, fontsize=7, rotation=0, ha="right", va="center")


def draw_bars(ax: Any, results: Mapping[str, Sequence[float]]) -> None:
    """Mean accuracy per method with its standard error, and a dot for every seed."""
    names = list(results)
    positions = np.arange(len(names))[::-1]
    means = [100 * float(np.mean(v)) for v in results.values()]
    errors = [100 * float(np.std(v)) / len(v) ** 0.5 for v in results.values()]
    colours = [COLOURS["plain"], COLOURS["third"], COLOURS["other"], COLOURS["adapted"]]
    ax.barh(positions, means, xerr=errors, color=colours[: len(names)], height=0.62, error_kw={"lw": 1})
    for y, mean, values in zip(positions, means, results.values()):
        ax.plot([100 * v for v in values], [y] * len(values), "o", color="black", ms=3, alpha=0.6)
        ax.text(0.6, y, f"{mean:.1f}", va="center", ha="left", color="white", fontsize=9, fontweight="bold")
    ax.set_yticks(positions, names, fontsize=8)
    ax.set_xlabel("accuracy on the target, %  (dots: seeds, whisker: s.e.)", fontsize=8)
    ax.tick_params(axis="x", labelsize=7)
    clean(ax)


def draw_stream(ax: Any, curves: Mapping[str, Sequence[np.ndarray]], window: int) -> None:
    """Accuracy over the last images along the stream, mean over seeds with the seeds' range behind it."""
    for (name, runs), colour in zip(curves.items(), (COLOURS["other"], COLOURS["adapted"])):
        length = min(map(len, runs))
        values = 100 * np.stack([r[:length] for r in runs])[:, window - 1 :]
        x = np.arange(window, length + 1)
        ax.plot(x, values.mean(0), color=colour, lw=1.5, label=name)
        ax.fill_between(x, values.min(0), values.max(0), color=colour, alpha=0.15, lw=0)
    ax.set_xlabel("images seen", fontsize=8)
    ax.set_ylabel(f"accuracy of the last {window}, %", fontsize=8)
    ax.tick_params(labelsize=7)
    ax.legend(fontsize=7, frameon=False, loc="lower right")
    clean(ax)


def clean(ax: Any) -> None:
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def plot_styles(path: Path, images: Mapping[str, np.ndarray], columns: Sequence[str], target: str) -> Path:
    size = (0.75 * len(columns) + 1, 0.8 * len(images) + 0.2)
    figure, grid = plt.subplots(len(images), len(columns), figsize=size, squeeze=False)
    draw_styles(grid, images, columns, target)
    return save(figure, path)


def plot_stream(path: Path, curves: Mapping[str, Sequence[np.ndarray]], window: int, title: str) -> Path:
    figure, ax = plt.subplots(figsize=(6, 3))
    draw_stream(ax, curves, window)
    ax.set_title(title, fontsize=9)
    return save(figure, path)


def plot_summary(
    path: Path,
    images: Mapping[str, np.ndarray],
    columns: Sequence[str],
    target: str,
    results: Mapping[str, Sequence[float]],
    curves: Mapping[str, Sequence[np.ndarray]],
    window: int,
) -> Path:
    """The whole demo in one picture: the styles, the accuracies, the stream."""
    figure: Any = plt.figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[1.15, 1])
    grid = left.subplots(len(images), len(columns), squeeze=False)
    draw_styles(grid, images, columns, target)
    top, bottom = right.subplots(2, 1)
    draw_bars(top, results)
    draw_stream(bottom, curves, window)
    return save(figure, path)
