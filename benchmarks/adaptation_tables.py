"""The rows of the adaptation grid, and the tables made of them."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.command import write_rows
from itta.files import replace_text
from itta.report.tables import Table, percent, points

WHOLE = ("itta+", "itta", "tent", "t3a")  # on every stream; the others on the plainest one
ORDERS = ("iid", "sorted", "dirichlet")
BATCHES = (1, 16, 64)
OWN_TRAINING = ("ttt", "ttt++", "mt3")


@dataclass(frozen=True)
class Row:
    """A method on a stream. ``before`` is the trained model's accuracy on the same images."""

    dataset: str
    target: str
    seed: int
    adapter: str
    order: str
    batch: int
    images: int
    before: float
    accuracy: float | None  # none where the method cannot run
    note: str = ""  # why not; or what the guard did
    settings: str = ""  # of the method, where they are not its defaults


def write(rows: Sequence[Row], out: Path, name: str) -> Path:
    """All rows as CSV, and the tables made of them."""
    write_rows(out / f"{name}.csv", (asdict(row).values() for row in rows), [f.name for f in fields(Row)])
    names = dict.fromkeys((*WHOLE, *(r.adapter for r in rows)))
    whole = [method for method in names if any((r.adapter, r.order) == (method, "sorted") for r in rows)]
    others = [row for row in rows if row.adapter not in whole]
    tables = [*(table_of(rows, method) for method in whole), seeds_table([r for r in rows if r.adapter in whole])]
    tables += [plainest_table(others), own_training_table(others)]
    sections = [f"### {t.title}\n\n{t.to_markdown()}\n" for t in tables if t.rows]
    replace_text(out / f"{name}.md", "\n".join(sections))
    return out / f"{name}.md"


def read_csv(path: Path) -> list[Row]:
    def row(line: dict[str, Any]) -> Row:
        counts = {name: int(line[name]) for name in ("seed", "batch", "images")}
        shares = {name: float(line[name]) if line[name] else None for name in ("before", "accuracy")}
        return Row(**line | counts | shares)

    with path.open(newline="") as file:
        return [row(line) for line in csv.DictReader(file)]


def gain(rows: Iterable[Row]) -> float | None:
    """Accuracy gained over the trained model, mean over seeds."""
    gains = [row.accuracy - row.before for row in rows if row.accuracy is not None]
    return mean(gains) if gains else None


def targets_of(rows: Sequence[Row]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((row.dataset, row.target) for row in rows))


def shown(value: float | None) -> str:
    return "–" if value is None else points(value)


def table_of(rows: Sequence[Row], name: str) -> Table:
    """A method's gain on every target and stream; the last row and column are means."""
    own = [row for row in rows if row.adapter == name]
    streams = [(o, b) for o in ORDERS for b in BATCHES]
    lines, every = [], []
    for dataset, target in targets_of(own):
        here = [row for row in own if (row.dataset, row.target) == (dataset, target)]
        plain = mean({row.seed: row.before for row in here}.values())
        gains = [gain(row for row in here if (row.order, row.batch) == s) for s in streams]
        lines.append([f"{dataset} {target}", percent(plain), *map(shown, gains)])
        every.append(gains)
    columns = [[g for g in column if g is not None] for column in zip(*every)]
    lines.append(["mean", "", *(shown(mean(c) if c else None) for c in columns)])
    known = [g for column in columns for g in column]
    worst = f"worst cell {points(min(known))}, mean {points(mean(known))}" if known else "cannot run"
    title = f"{name}: points gained over the trained model ({worst})"
    return Table(title, ["target", "trained, %", *(f"{o}, {b}" for o, b in streams)], lines)


def seeds_table(rows: Sequence[Row]) -> Table:
    """Every method that has the whole grid, seed by seed: the mean over its streams, and the worst of them."""
    seeds, lines = sorted({row.seed for row in rows}), []
    for name in dict.fromkeys(r.adapter for r in rows):
        gains = [
            [r.accuracy - r.before for r in rows if (r.adapter, r.seed) == (name, s) and r.accuracy is not None]
            for s in seeds
        ]
        if gains and all(gains):
            lines.append([name, *(f"{points(mean(g))}, {points(min(g))}" for g in gains)])
    title = "Seed by seed: mean and worst stream, points gained over the trained model"
    return Table(title, ["method", *(f"seed {s}" for s in seeds)], lines)


def plainest_table(rows: Sequence[Row]) -> Table:
    """Every method, images in random order; batches of 16 where there are such, else of 32."""
    targets = targets_of(rows)
    lines = []
    for name in dict.fromkeys(row.adapter for row in rows if row.adapter not in OWN_TRAINING):
        own = [row for row in rows if row.adapter == name and row.order == "iid" and row.batch in (16, 32)]
        gains = [gain(r for r in own if (r.dataset, r.target) == t) for t in targets]
        known = [g for g in gains if g is not None]
        lines.append([name, *map(shown, gains), shown(mean(known) if known else None)])
    title = "Random order, batches of 16 or 32: points gained over the trained model"
    return Table(title, ["method", *(f"{d} {t}" for d, t in targets), "mean"], lines)


def own_training_table(rows: Sequence[Row]) -> Table:
    """Methods that adapt models of their own training, each beside what its models do without it."""
    targets, lines = targets_of(rows), []
    for name in OWN_TRAINING:
        of_target = [[r for r in rows if (r.adapter, r.dataset, r.target) == (name, *t)] for t in targets]
        if all(of_target):
            known = [(mean(r.before for r in own), gain(own)) for own in of_target]
            means = mean(before for before, _ in known), mean(g for _, g in known if g is not None)
            lines.append([name, *(f"{percent(before)}, {shown(gained)}" for before, gained in (*known, means))])
    title = "Models of their own training: accuracy without adapting, %, and points gained"
    return Table(title, ["method", *(f"{d} {t}" for d, t in targets), "mean"], lines)
