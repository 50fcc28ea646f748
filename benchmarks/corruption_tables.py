"""Write the tables and the figure of docs/results/corruptions.md from the rows of the corruption grid.

python -m benchmarks.corruption_tables
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from benchmarks.benchmark_results import ADAPTERS, listed, signed
from benchmarks.command import run_command
from benchmarks.corruption_grid import NAME, Row
from benchmarks.pages import meaning, write_between
from itta.errors import InputError
from itta.metrics.significance import t_interval
from itta.report.plot_style import hide_spines, pyplot, save_figure, series_style
from itta.report.tables import Table

GROUNDS = {"frozen": "frozen batch normalisation", "live": "live batch normalisation"}
DATA = {"emoji": "EmojiStyles"}
PICTURE = (
    "![Accuracy of each method by strength of the damage, with frozen and live statistics](../images/corruptions.png)"
)


@dataclass(frozen=True)
class Options:
    records: Path = Path("docs/results/records")  # with corruption_grid.csv
    page: Path = Path("docs/results/corruptions.md")  # with two comments around the tables
    images: Path = Path("docs/images")  # for corruptions.png


@dataclass(frozen=True)
class Gain:
    """What an adapter gains over no adaptation, in points: over all damaged images, and on each kind of damage."""

    mean: float
    low: float  # ends of the 95 % interval over the kinds
    high: float
    by_kind: dict[str, float]


def read_rows(path: Path) -> list[Row]:
    if not path.is_file():
        raise InputError(f"there is no {path}: python -m benchmarks.corruption_grid writes it.")
    with path.open(newline="") as file:
        return [
            Row(**{**r, "seed": int(r["seed"]), "strength": float(r["strength"]), "accuracy": float(r["accuracy"])})
            for r in csv.DictReader(file)
        ]


def gain_of(rows: list[Row], adapter: str) -> Gain:
    """Compare an adapter with no adaptation on the same damaged images; each kind of damage counts once."""
    plain = {r[:5]: r.accuracy for r in rows if r.adapter == "source"}
    by_kind: dict[str, list[float]] = {}
    for r in rows:
        if r.adapter == adapter and r.strength > 0 and r[:5] in plain:
            by_kind.setdefault(r.corruption, []).append(r.accuracy - plain[r[:5]])
    means = {kind: mean(gains) for kind, gains in by_kind.items()}
    values = np.array(list(means.values()))
    low, high = map(float, t_interval(values)) if len(values) > 1 else (float("-inf"), float("inf"))
    return Gain(float(values.mean()), low, high, means)


def strength_table(rows: list[Row]) -> Table:
    """Accuracy by strength, its mean on damaged images, and the gain over no adaptation."""
    strengths = sorted({r.strength for r in rows})
    lines = []
    for adapter in dict.fromkeys(r.adapter for r in rows):
        own = [r for r in rows if r.adapter == adapter]
        cells = [f"{mean(r.accuracy for r in own if r.strength == s):.1f}" for s in strengths]
        cells.append(f"{mean(r.accuracy for r in own if r.strength > 0):.1f}")
        gain = gain_of(rows, adapter) if adapter != "source" else None
        shown = f"{signed(gain.mean / 100)} ({signed(gain.low / 100)} … {signed(gain.high / 100)})" if gain else ""
        worst = min(gain.by_kind, key=lambda kind: gain.by_kind[kind]) if gain else ""
        lines.append(
            [ADAPTERS.get(plain_name(adapter), adapter), *cells, shown]
            + [f"{worst} {signed(gain.by_kind[worst] / 100)}" if gain else ""]
        )
    heads = ["whole" if s == 0 else f"{s:g}" for s in strengths] + ["damaged"]
    return Table("", ["accuracy, %, by strength", *heads, "gain on damaged images (95 %)", "worst kind"], lines)


def plain_name(adapter: str) -> str:
    return f"guarded {adapter}" if adapter == "itta+" else adapter  # the grid guards itta+ and no other


def sentences(rows: list[Row]) -> Iterator[str]:
    """What a table means: the best method, and those that gain or lose on every kind of damage."""
    gains = {a: gain_of(rows, a) for a in dict.fromkeys(r.adapter for r in rows) if a != "source"}
    if not gains:
        yield "No test-time method has run so far."
        return
    best = max(gains, key=lambda a: gains[a].mean)
    name = {a: ADAPTERS.get(plain_name(a), a) for a in gains}
    if gains[best].low > 0:
        yield f"{name[best]} gains most, {signed(gains[best].mean / 100)} points on average."
    elif gains[best].mean > 0:
        yield f"{name[best]} gains most, {signed(gains[best].mean / 100)} points, and its interval contains 0."
    else:
        yield "No method gains on average."
    everywhere = [name[a] for a, gain in gains.items() if min(gain.by_kind.values()) > 0]
    nowhere = [name[a] for a, gain in gains.items() if max(gain.by_kind.values()) < 0]
    if everywhere:
        yield f"On every kind of damage {listed(everywhere)} gain{'s' * (len(everywhere) == 1)}."
    if nowhere:
        yield f"On every kind of damage {listed(nowhere)} lose{'s' * (len(nowhere) == 1)}."


def kind_table(rows: list[Row]) -> Table:
    """Points gained on each kind of damage, mean over strengths."""
    gains = {a: gain_of(rows, a) for a in dict.fromkeys(r.adapter for r in rows) if a != "source"}
    kinds = list(dict.fromkeys(r.corruption for r in rows if r.strength > 0))
    lines = []
    for kind in kinds:
        plain = mean(r.accuracy for r in rows if r.corruption == kind and r.adapter == "source")
        lines.append([kind, f"{plain:.1f}", *(signed(gain.by_kind.get(kind, 0.0) / 100) for gain in gains.values())])
    heads = [ADAPTERS.get(plain_name(a), a) for a in gains]
    return Table("", ["points gained", "no adaptation, %", *heads], lines)


def grounds(rows: list[Row]) -> Iterator[tuple[str, str, list[Row]]]:
    """Yield data set, kind of batch normalisation, and their rows."""
    for data, bn in dict.fromkeys((r.data, r.bn) for r in rows):
        yield data, bn, [r for r in rows if (r.data, r.bn) == (data, bn)]


def draw(path: Path, rows: list[Row]) -> Path:
    """Draw accuracy by strength, a panel for each data set and kind of batch normalisation."""
    data = list(dict.fromkeys(r.data for r in rows))
    names = list(dict.fromkeys(r.adapter for r in rows))
    across = [bn for bn in GROUNDS if any(r.bn == bn for r in rows)]
    size = (4.6 * len(across) + 0.6, 3.0 * len(data) + 0.7)
    figure, axes = pyplot().subplots(len(data), len(across), figsize=size, squeeze=False, layout="constrained")
    for name, bn, own in grounds(rows):
        ax = axes[data.index(name)][across.index(bn)]
        for i, adapter in enumerate(names):
            draw_line(ax, own, adapter, i)
        ax.set_title(f"{DATA.get(name, name)}, {GROUNDS[bn]}", fontsize=10, loc="left")
        ax.set_xlabel("strength of the damage", fontsize=9)
        ax.grid(lw=0.3, color="#cccccc")
        hide_spines(ax)
    for row in axes:
        row[0].set_ylabel("accuracy, %", fontsize=9)
    figure.legend(
        *axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=8
    )
    return save_figure(figure, path)


def draw_line(ax: Any, rows: list[Row], adapter: str, i: int) -> None:
    """Draw one adapter; no adaptation is black."""
    strengths = sorted({r.strength for r in rows})
    means = [mean(r.accuracy for r in rows if r.adapter == adapter and r.strength == s) for s in strengths]
    colour, _, marker = series_style(i - 1) if adapter != "source" else ("black", "", "s")
    width = 2.2 if adapter in ("source", "itta+") else 1.2
    name = ADAPTERS.get(plain_name(adapter), adapter).replace("`", "")
    ax.plot(strengths, means, color=colour, marker=marker, ms=4, lw=width, label=name)


def main(options: Options) -> None:
    rows = read_rows(options.records / NAME)
    kinds, seeds = (len({r[i] for r in rows if r.strength > 0}) for i in (3, 2))
    text = f"{PICTURE}\n\nMeasured so far: {kinds} kinds of damage, {seeds} seed(s)."
    for data, bn, own in grounds(rows):
        text += f"\n\n## {DATA.get(data, data)}, {GROUNDS[bn]}\n\n{strength_table(own).to_markdown()}\n\n"
        text += f"{meaning(sentences(own))}\n\n{kind_table(own).to_markdown()}\n\n"
        text += "Each entry is the mean over the strengths."
    write_between(options.page, "corruption_tables", text)
    draw(options.images / "corruptions.png", rows)
    print(text)


if __name__ == "__main__":
    run_command("corruption_tables", main, Options(), __doc__)
