"""The results that the library returns: values, a table as text, and in a notebook a table with a small figure."""

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from itta.algorithms import Algorithm
from itta.metrics.accuracy import percent
from itta.metrics.outcome import Outcome
from itta.records import Record

WIDTH, HEIGHT = 320, 80  # of a figure
SHOWN = 20  # rows of predictions that a notebook shows


@dataclass(frozen=True, repr=False)
class TrainedResult:
    """A trained model, and its accuracy as training measured it."""

    model: Algorithm
    records: tuple[Record, ...] = field(default=())
    folder: Path | None = None  # the model's directory, if it was kept

    @property
    def accuracy(self) -> dict[str, dict[str, float]]:
        """Domain -> split -> accuracy of the last step: "out" is held out; "all" are all images of a target."""
        return {domain: dict(splits) for domain, splits in self.records[-1].accuracy.items()}

    def to_dict(self) -> dict[str, Any]:
        last = self.records[-1]
        return {
            "algorithm": self.model.name,
            "hparams": dict(last.hparams),
            "step": last.step,
            "accuracy": self.accuracy,
            "folder": str(self.folder) if self.folder else None,
        }

    def rows(self) -> list[list[str]]:
        return [
            [domain, "target, all images" if "all" in splits else "source, held out", percent(one_of(splits))]
            for domain, splits in self.accuracy.items()
        ]

    def __repr__(self) -> str:
        return as_text(self.title, ["domain", "images", "accuracy %"], self.rows())

    def _repr_html_(self) -> str:
        curves = {d: [one_of(r.accuracy[d]) for r in self.records] for d in self.accuracy}
        return as_html(self.title, ["domain", "images", "accuracy %"], self.rows()) + draw_curves(curves)

    @property
    def title(self) -> str:
        return f"{self.model.name} after {self.records[-1].step} steps"


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The accuracy of an adapter on each domain; with ``before``, that of the model without adaptation."""

    adapter: str
    outcomes: Mapping[str, Outcome]  # by domain
    before: Mapping[str, Outcome] = field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        """The mean over the domains."""
        return float(np.mean([o.accuracy for o in self.outcomes.values()]))

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"adapter": self.adapter, "accuracy": self.accuracy}
        found["domains"] = {d: o.accuracy for d, o in self.outcomes.items()}
        found["images"] = {d: len(o.labels) for d, o in self.outcomes.items()}
        if self.before:
            found["before"] = {d: o.accuracy for d, o in self.before.items()}
        return found

    def table(self) -> tuple[list[str], list[list[str]]]:
        columns = ["domain", "images", *(["as trained %"] if self.before else []), f"{self.adapter} %"]
        rows = []
        for domain, outcome in self.outcomes.items():
            old = [percent(self.before[domain].accuracy)] if self.before else []
            rows.append([domain, str(len(outcome.labels)), *old, percent(outcome.accuracy)])
        return columns, rows

    def __repr__(self) -> str:
        return as_text("accuracy", *self.table())

    def _repr_html_(self) -> str:
        curves = {d: running(o) for d, o in self.outcomes.items()}
        return as_html("accuracy", *self.table()) + draw_curves(curves)


@dataclass(frozen=True, repr=False)
class Predictions(Sequence[tuple[str, str, float]]):
    """A row for each image: its name, the predicted class and its probability."""

    adapter: str
    names: tuple[str, ...]
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, row: Any) -> Any:
        return list(self)[row]

    def __iter__(self) -> Iterator[tuple[str, str, float]]:
        return zip(self.names, self.classes, self.probabilities)

    def to_dict(self) -> dict[str, Any]:
        rows = [{"image": name, "class": label, "probability": p} for name, label, p in self]
        return {"adapter": self.adapter, "images": rows}

    def counts(self) -> dict[str, int]:
        """Class -> images of that class."""
        return {label: self.classes.count(label) for label in sorted(set(self.classes))}

    def rows(self) -> list[list[str]]:
        return [[name, label, percent(p)] for name, label, p in self[:SHOWN]]

    def __repr__(self) -> str:
        return as_text(self.title, ["image", "class", "probability %"], self.rows())

    def _repr_html_(self) -> str:
        return as_html(self.title, ["image", "class", "probability %"], self.rows()) + draw_bars(self.counts())

    @property
    def title(self) -> str:
        more = f", the first {SHOWN}" if len(self) > SHOWN else ""
        return f"{self.adapter}: {len(self)} images{more}"


def one_of(splits: Mapping[str, float]) -> float:
    """The accuracy to show: on all images of a target, or on those of a source that were held out."""
    return splits["all"] if "all" in splits else splits["out"]


def running(outcome: Outcome) -> list[float]:
    return outcome.running_accuracy(max(1, min(100, len(outcome.labels) // 4))).tolist()


def as_text(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table in columns.

    >>> print(as_text("accuracy", ["domain", "%"], [["site-1", "90.0"]]))
    accuracy
    domain  %
    site-1  90.0
    """
    table = [list(columns), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*table)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in table]
    return "\n".join([title, *lines])


def as_html(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(c)}</th>" for c in columns)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    return f"<table><caption>{html.escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def draw_curves(curves: Mapping[str, Sequence[float]]) -> str:
    """Draw shares between 0 and 1 as lines of an SVG; a title names each."""
    lines = []
    for i, (name, values) in enumerate(curves.items()):
        step = WIDTH / max(len(values) - 1, 1)
        points = " ".join(f"{step * k:.1f},{HEIGHT * (1 - v):.1f}" for k, v in enumerate(values))
        colour = f"hsl({137 * i % 360} 60% 40%)"
        lines.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5">'
            f"<title>{html.escape(name)}</title></polyline>"
        )
    return figure("".join(lines), "accuracy: " + ", ".join(curves))


def draw_bars(counts: Mapping[str, int]) -> str:
    """Draw numbers of images as bars of an SVG."""
    most, width = max(counts.values(), default=1), WIDTH / max(len(counts), 1)
    bars = "".join(
        f'<rect x="{width * i:.1f}" y="{HEIGHT * (1 - n / most):.1f}" width="{0.8 * width:.1f}" '
        f'height="{HEIGHT * n / most:.1f}" fill="hsl(210 50% 50%)"><title>{html.escape(f"{name}: {n}")}</title></rect>'
        for i, (name, n) in enumerate(counts.items())
    )
    return figure(bars, "predicted: " + ", ".join(f"{name} {n}" for name, n in counts.items()))


def figure(inside: str, label: str) -> str:
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{html.escape(label)}"><rect width="100%" height="100%" fill="none" stroke="#999"/>{inside}</svg>'
    )
