"""Figures of results: accuracy along a stream, and the figures of a table."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from itta.report.plot_style import COLOURS, PALETTE, hide_spines, pyplot, save_figure, series_style


def draw_stream(ax: Any, curves: Mapping[str, Sequence[np.ndarray]], window: int) -> None:
    """Draw running accuracies along the stream: the mean over seeds, and their range behind it."""
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
    hide_spines(ax)


def plot_stream(path: Path, curves: Mapping[str, Sequence[np.ndarray]], window: int, title: str) -> Path:
    figure, ax = pyplot().subplots(figsize=(6, 3))
    draw_stream(ax, curves, window)
    ax.set_title(title, fontsize=9)
    return save_figure(figure, path)


def plot_domains(path: Path, results: Mapping[str, Mapping[str, tuple[float, float]]], title: str) -> Path:
    """Plot a bar for each domain and method: ``results`` is method -> domain -> (mean, error)."""
    domains = list(dict.fromkeys(d for found in results.values() for d in found))
    width = 0.84 / len(results)
    size = (max(6.0, 0.24 * len(results) * len(domains) + 1.5), 3.8)
    figure, ax = pyplot().subplots(figsize=size, layout="constrained")
    for i, (method, found) in enumerate(results.items()):
        colour, hatch, _ = series_style(i)
        x = [domains.index(d) + (i - (len(results) - 1) / 2) * width for d in found]
        means, errors = 100 * np.array(list(found.values())).reshape(-1, 2).T
        look: dict[str, Any] = {
            "color": colour,
            "hatch": hatch,
            "ec": "black",
            "lw": 0.5,
            "error_kw": {"lw": 1.2, "capsize": 2},
        }
        ax.bar(x, means, width, yerr=errors, label=method, **look)
    ax.set_xticks(range(len(domains)), domains, fontsize=8)
    ax.set_ylabel("accuracy, %  (whisker: s.e.)", fontsize=8)
    ax.tick_params(axis="y", labelsize=7)
    ax.grid(axis="y", lw=0.3, color="#cccccc")
    ax.set_axisbelow(True)
    ax.set_title(title, fontsize=9)
    figure.legend(fontsize=7, frameon=False, ncols=min(len(results), 4), loc="outside lower center", handleheight=1.2)
    hide_spines(ax)
    return save_figure(figure, path)


def plot_sensitivity(path: Path, runs: Mapping[str, Sequence[tuple[float, float, float]]], title: str) -> Path:
    """Plot a panel for each hyper-parameter, with two marks for each trial: name -> (value, validation, target).

    Accuracies are differences from the mean over the trials with the same target, since targets differ the most.
    """
    across = min(len(runs), 3)
    down = -(-len(runs) // across)
    size = (max(5.0, 2.9 * across + 0.4), 2.4 * down + 0.6)
    figure, axes = pyplot().subplots(down, across, figsize=size, squeeze=False, sharey=True, layout="constrained")
    for ax, (name, found) in zip(axes.flat, runs.items()):
        value, validation, target = np.array(sorted(found)).T
        ax.axhline(0, color="#cccccc", lw=0.8)
        ax.plot(value, 100 * validation, "o", ms=4, mfc="white", mec=PALETTE[0], label="source, held out (selects)")
        ax.plot(value, 100 * target, "^", ms=4, color=PALETTE[5], label="target")
        if value.min() > 0 and value.max() > 20 * value.min():
            ax.set_xscale("log")
        ax.set_xlabel(name, fontsize=8)
        ax.tick_params(labelsize=7)
        hide_spines(ax)
    for ax in axes.flat[len(runs) :]:
        ax.set_visible(False)
    for row in axes:
        row[0].set_ylabel("accuracy, points from\nthe mean of its target", fontsize=8)
    handles = axes[0][0].get_legend_handles_labels()
    figure.legend(*handles, fontsize=7, frameon=False, ncols=2, loc="outside lower center")
    figure.suptitle(title, fontsize=9)
    return save_figure(figure, path)


def plot_critical_difference(path: Path, ranks: Mapping[str, float], difference: float, title: str) -> Path:
    """Plot mean ranks on a line, the best at the left; a bar joins ranks that Nemenyi's test cannot distinguish."""
    ordered = sorted(ranks, key=lambda row: ranks[row])
    groups = indistinct_groups([ranks[row] for row in ordered], difference)
    lines = -(-len(ordered) // 2)
    top = 0.9 + 0.28 * len(groups)
    figure, ax = pyplot().subplots(figsize=(6.4, 0.34 * (lines + top) + 0.9))
    low, high = int(np.floor(min(ranks.values()))), int(np.ceil(max(ranks.values())))
    high = max(high, low + 1)
    span = high - low
    ax.hlines(0, low, high, color="black", lw=1)
    for tick in range(low, high + 1):
        ax.vlines(tick, 0, 0.18, color="black", lw=1)
        ax.text(tick, 0.28, str(tick), ha="center", va="bottom", fontsize=8)
    for i, row in enumerate(ordered):
        left = i < lines
        y = -top - 0.75 * (i if left else len(ordered) - 1 - i)
        edge = low - 0.06 * span if left else high + 0.06 * span
        ax.plot([ranks[row], ranks[row], edge], [0, y, y], color="#555555", lw=0.8)
        text = f"{row}  {ranks[row]:.2f}" if left else f"{ranks[row]:.2f}  {row}"
        ax.text(
            edge - 0.01 * span if left else edge + 0.01 * span,
            y,
            text,
            ha="right" if left else "left",
            va="center",
            fontsize=8,
        )
    for i, (first, last) in enumerate(groups):
        y = -0.35 - 0.28 * i
        ax.plot([ranks[ordered[first]] - 0.01 * span, ranks[ordered[last]] + 0.01 * span], [y, y], color="black", lw=3)
    ax.plot([low, low + difference], [1.5, 1.5], color="black", lw=1, marker="|", ms=7)
    ax.text(low + difference / 2, 1.65, f"critical difference {difference:.2f}", ha="center", va="bottom", fontsize=8)
    ax.set_title(title, fontsize=8, pad=14)
    ax.axis("off")
    return save_figure(figure, path)


def indistinct_groups(ranks: Sequence[float], difference: float) -> list[tuple[int, int]]:
    """The longest groups of neighbours in sorted ranks that span at most the difference: (first, last) of each.

    >>> indistinct_groups([1.0, 1.5, 2.2, 4.0], 1.0)
    [(0, 1), (1, 2)]
    """
    groups: list[tuple[int, int]] = []
    for first in range(len(ranks)):
        last = max(i for i in range(len(ranks)) if ranks[i] - ranks[first] <= difference)
        if last > first and not (groups and groups[-1][1] >= last):
            groups.append((first, last))
    return groups
