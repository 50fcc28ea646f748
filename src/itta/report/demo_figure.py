"""The figure of the demo: the styles, the accuracy of each pair of methods, and accuracy along a stream."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from itta.report.plot_style import COLOURS, hide_spines, pyplot, save_figure

LINES = (("plain", "-"), ("third", "-"), ("other", "--"), ("adapted", "-"))  # colours and dashes of the curves


@dataclass(frozen=True)
class DomainPictures:
    """Pictures of the same things in every domain."""

    images: Mapping[str, np.ndarray]  # domain -> [columns, height, width, 3]
    columns: Sequence[str]  # the name of each thing
    target: str


@dataclass(frozen=True)
class StreamResults:
    accuracies: Mapping[str, Mapping[str, Sequence[float]]]  # method -> stream -> seeds; a model's first row is plain
    curves: Mapping[str, Sequence[np.ndarray]]  # method -> accuracy along a stream, seed by seed
    window: int  # images over which a curve is averaged


def plot_demo(path: Path, pictures: DomainPictures, results: StreamResults) -> Path:
    """Draw the whole demo in one figure."""
    figure: Any = pyplot().figure(figsize=(11.5, 5.4), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[1, 1.35])
    draw_styles(left.subplots(len(pictures.images), len(pictures.columns), squeeze=False), pictures)
    left.suptitle("three styles to learn from, one to meet", fontsize=9)
    top, bottom = right.subplots(2, 1, height_ratios=[1.35, 1])
    draw_accuracies(top, results.accuracies)
    draw_curves(bottom, results.curves, results.window)
    return save_figure(figure, path)


def draw_styles(grid: Any, pictures: DomainPictures) -> None:
    """Draw a row of pictures for each domain; a red frame marks the target."""
    for i, (domain, row) in enumerate(pictures.images.items()):
        is_target = domain == pictures.target
        for j, image in enumerate(row):
            ax = grid[i][j]
            ax.imshow(image)
            ax.set_xticks([])
            ax.set_yticks([])
            for spine in ax.spines.values():
                spine.set_color(COLOURS["adapted"] if is_target else "#dddddd")
                spine.set_linewidth(1.5 if is_target else 0.5)
            if i == 0:
                ax.set_title(pictures.columns[j], fontsize=6)
            if j == 0:
                label = f"{domain}\n({'target' if is_target else 'source'})"
                ax.set_ylabel(label, fontsize=7, rotation=0, ha="right", va="center")


def draw_accuracies(ax: Any, accuracies: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """Draw two bars for each method, one for each stream, with their means; dots are seeds."""
    streams = list(next(iter(accuracies.values())))
    colours = dict(zip(streams, (COLOURS["other"], COLOURS["adapted"])))
    for i, found in enumerate(accuracies.values()):
        for j, (stream, values) in enumerate(found.items()):
            y, mean = -i - 0.38 * (j - 0.5), 100 * float(np.mean(values))
            ax.barh(y, mean, color=colours[stream], height=0.36, label=stream if i == 0 else None)
            if len(values) > 1:
                ax.plot([100 * v for v in values], [y] * len(values), "o", color="black", ms=2.5, alpha=0.6)
            ax.text(1, y, f"{mean:.1f}", va="center", ha="left", color="white", fontsize=7, fontweight="bold")
    ax.set_yticks([-i for i in range(len(accuracies))], list(accuracies), fontsize=8)
    ax.set_xlim(0, 100)
    several = any(len(values) > 1 for streams in accuracies.values() for values in streams.values())
    ax.set_xlabel(f"accuracy on the target, %{'  (dots: seeds)' if several else ''}", fontsize=8)
    ax.tick_params(axis="x", labelsize=7)
    ax.legend(fontsize=7, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    hide_spines(ax)


def draw_curves(ax: Any, curves: Mapping[str, Sequence[np.ndarray]], window: int) -> None:
    """Draw accuracy along the stream, the mean over seeds, for each method."""
    for (name, runs), (colour, dashes) in zip(curves.items(), LINES):
        length = min(map(len, runs))
        mean = 100 * np.mean([run[:length] for run in runs], 0)[window - 1 :]
        ax.plot(np.arange(window, length + 1), mean, color=COLOURS[colour], ls=dashes, lw=1.5, label=name)
    ax.set_ylim(0, 100)
    ax.set_xlabel("images seen, classes in clusters", fontsize=8)
    ax.set_ylabel(f"accuracy of the last {window}, %", fontsize=8)
    ax.tick_params(labelsize=7)
    ax.legend(fontsize=7, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)
    hide_spines(ax)
