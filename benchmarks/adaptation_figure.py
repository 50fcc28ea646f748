"""The adaptation grid as one figure: what every test-time method gained or lost, a mark for each target and stream."""

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import tyro

from benchmarks.adaptation_tables import Row, gain, read_csv
from itta.report.plot_style import MARKERS, PALETTE, hide_spines, pyplot, save_figure

Gains = dict[str, dict[str, list[float]]]  # method -> data set -> a gain for each target and stream


def gains_of(rows: Sequence[Row]) -> Gains:
    """Means over seeds, in points; the method that gains most on average comes first."""
    cells: dict[tuple[str, str, str, str, int], list[Row]] = {}
    for row in rows:
        cells.setdefault((row.adapter, row.dataset, row.target, row.order, row.batch), []).append(row)
    found: Gains = {}
    for (method, dataset, *_), of_cell in cells.items():
        gained = gain(of_cell)
        if gained is not None:
            found.setdefault(method, {}).setdefault(dataset, []).append(100 * gained)
    return dict(sorted(found.items(), key=lambda item: -mean(all_of(item[1]))))


def all_of(by_dataset: dict[str, list[float]]) -> list[float]:
    return [g for gains in by_dataset.values() for g in gains]


def draw_gains(ax: Any, gains: Gains) -> None:
    """A line for each method; the scale is linear up to two points and logarithmic beyond."""
    datasets = list(dict.fromkeys(d for of_method in gains.values() for d in of_method))
    for i, dataset in enumerate(datasets):
        for y, of_method in enumerate(gains.values()):
            values = of_method.get(dataset, [])
            spread = [y - 0.18 + 0.36 * i / max(len(datasets) - 1, 1)] * len(values)
            label = dataset if y == 0 else None
            ax.plot(values, spread, MARKERS[i], color=PALETTE[i], ms=4, alpha=0.5, mew=0, ls="", label=label)
    means = [mean(all_of(of_method)) for of_method in gains.values()]
    ax.plot(means, range(len(means)), "|", color="black", ms=15, mew=2, ls="", label="mean")
    ax.axvline(0, color="#555555", lw=0.8, zorder=0)
    ax.set_xscale("symlog", linthresh=2)
    low, high = ax.get_xlim()
    ticks = [t for t in (-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20, 50) if low <= t <= high]
    ax.set_xticks(ticks, [f"{t:+d}" if t else "0" for t in ticks])
    ax.minorticks_off()
    ax.set_yticks(range(len(gains)), [f"{name}  {m:+.1f}" for name, m in zip(gains, means)])
    ax.invert_yaxis()
    ax.grid(axis="x", color="#eeeeee")
    ax.set_axisbelow(True)
    ax.tick_params(labelsize=8)
    ax.set_xlabel("points gained over the trained model", fontsize=8)
    ax.legend(fontsize=8, frameon=False, loc="lower right")
    hide_spines(ax)


def main(records: Path = Path("grid/grid.csv"), out: Path = Path("grid/grid.png")) -> None:
    """Draw the grid.

    Args:
        records: the grid's rows, as benchmarks.adaptation_grid writes them.
        out: the picture to write.
    """
    if not records.is_file():
        sys.exit(f"error: there is no {records}: python -m benchmarks.adaptation_grid writes it.")
    gains = gains_of(read_csv(records))
    figure, ax = pyplot().subplots(figsize=(7, 0.32 * len(gains) + 0.8))
    draw_gains(ax, gains)
    print(save_figure(figure, out))


if __name__ == "__main__":
    tyro.cli(main, prog="python -m benchmarks.adaptation_figure", description=__doc__)
