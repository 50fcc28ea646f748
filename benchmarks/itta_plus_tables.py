"""The tables and the figure of docs/results/itta_plus_grid.md, from the records alone."""

import csv
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import tyro

from benchmarks.itta_plus_grid import BATCHES, DOMAINS, ORDERS, UNEQUAL, Row
from itta.errors import InputError
from itta.files import replace_text
from itta.report.plots import pyplot
from itta.report.tables import Table


@dataclass(frozen=True)
class Options:
    records: Path = Path("docs/results/records")  # of benchmarks.itta_plus_grid
    out: Path = Path("itta_plus_tables.md")
    figure: Path = Path("docs/images/itta_plus.png")


def read(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    whole, shares = ("seed", "batch", "draw", "images"), ("before", "gain")
    return [Row(**{k: int(v) if k in whole else float(v) if k in shares else v for k, v in r.items()}) for r in lines]


def cells(rows: Iterable[Row], key: Callable[[Row], tuple[object, ...]]) -> dict[tuple[object, ...], float]:
    """The mean gain of the rows that share a key."""
    found: dict[tuple[object, ...], list[float]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row.gain)
    return {k: mean(gains) for k, gains in found.items()}


def cell(row: Row) -> tuple[object, ...]:
    return row.dataset, row.target, row.training, row.kind, row.batch


def shown(gains: Sequence[float]) -> str:
    return f"{mean(gains):+.1f}" if gains else "–"


def target_table(rows: list[Row], training: str) -> Table:
    """itta+ on each target and each of the nine streams."""
    own = [r for r in rows if r.method == "itta+" and r.training == training and r.kind in ORDERS]
    lines = []
    for dataset, target in dict.fromkeys((r.dataset, r.target) for r in own):
        here = [r for r in own if (r.dataset, r.target) == (dataset, target)]
        gains = [shown([r.gain for r in here if (r.kind, r.batch) == (o, b)]) for o in ORDERS for b in BATCHES]
        lines.append([f"{dataset} {target}", f"{mean(r.before for r in here):.1f}", *gains])
    columns = [shown([r.gain for r in own if (r.kind, r.batch) == (o, b)]) for o in ORDERS for b in BATCHES]
    lines.append(["mean", "", *columns])
    title = f"itta+ on models trained with {training}: points gained over the trained model"
    return Table(title, ["target", "trained, %", *(f"{o}, {b}" for o in ORDERS for b in BATCHES)], lines)


def method_table(rows: list[Row]) -> Table:
    """Methods on the nine streams of every model."""
    lines = []
    for method in dict.fromkeys(r.method for r in rows):
        own = [r for r in rows if r.method == method and r.kind in ORDERS]
        kinds = [shown([r.gain for r in own if r.kind == o]) for o in ORDERS]
        worst, single = min(cells(own, cell).values()), min(r.gain for r in own)
        lines.append([method, *kinds, shown([r.gain for r in own]), f"{worst:+.1f}", f"{single:+.1f}"])
    return Table("Methods", ["method", *ORDERS, "mean", "worst cell", "worst stream"], lines)


def other_table(rows: list[Row]) -> Table:
    """itta+ on unequal classes and on several domains, batches of 16."""
    lines = []
    for kind in (*UNEQUAL, *DOMAINS):
        own = [r for r in rows if r.method == "itta+" and r.kind == kind]
        if own:
            worst = min(cells(own, cell).values())
            lines.append([kind, shown([r.gain for r in own]), f"{worst:+.1f}", f"{min(r.gain for r in own):+.1f}"])
    return Table("Unequal classes, and several domains", ["stream", "mean", "worst cell", "worst stream"], lines)


def ablation_table(rows: list[Row]) -> Table:
    kinds, lines = (*ORDERS, *UNEQUAL), []
    for method in dict.fromkeys(r.method for r in rows if "t3a" not in r.method and "lame" not in r.method):
        own = [r for r in rows if r.method == method and r.kind in kinds]
        if own:
            worst = min(cells(own, cell).values())
            lines.append([method, *(shown([r.gain for r in own if r.kind == k]) for k in kinds), f"{worst:+.1f}"])
    return Table("Each part, batches of 16", ["variant", *kinds, "worst cell"], lines)


def batch_sentence(rows: list[Row]) -> str:
    gains = {
        b: mean(r.gain for r in rows if r.method == "itta+" and r.kind in ORDERS and r.batch == b) for b in BATCHES
    }
    return "Mean by batch size: " + ", ".join(f"{b}: {gain:+.2f}" for b, gain in gains.items())


def draw(rows: list[Row], path: Path) -> None:
    """A mark for each target and stream."""
    plt = pyplot()
    methods = list(dict.fromkeys(r.method for r in rows))
    figure, axes = plt.subplots(figsize=(7, 0.5 + 0.5 * len(methods)))
    colours = dict(zip(ORDERS, ("tab:blue", "tab:orange", "tab:green")))
    for y, method in enumerate(reversed(methods)):
        own = [r for r in rows if r.method == method and r.kind in ORDERS]
        for (*_, kind, _), gain in cells(own, cell).items():
            offset = 0.2 * (ORDERS.index(str(kind)) - 1)
            axes.plot(gain, y - offset, ".", color=colours[str(kind)], alpha=0.5)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(methods)), reversed(methods))
    axes.set_xlabel("points gained over the trained model; a mark is a target and a stream")
    axes.legend([plt.Line2D([], [], color=c, marker=".", linestyle="") for c in colours.values()], list(colours))
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(options: Options) -> None:
    rows, parts = (read(options.records / f"itta_plus_{name}.csv") for name in ("grid", "ablation"))
    tables = [target_table(rows, t) for t in dict.fromkeys(r.training for r in rows)]
    tables += [method_table(rows), other_table(rows), ablation_table(parts)]
    text = "\n".join(f"### {t.title}\n\n{t.to_markdown()}\n" for t in tables)
    models = len({(r.dataset, r.target, r.training, r.seed) for r in rows})
    replace_text(options.out, f"{models} models. {batch_sentence(rows)}.\n\n{text}")
    draw(rows, options.figure)
    print(options.out.read_text())


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, prog="python -m benchmarks.itta_plus_tables", description=__doc__))
    except InputError as error:
        sys.exit(f"error: {error}")
