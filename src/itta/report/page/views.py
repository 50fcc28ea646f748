"""A stream in tables, texts and a chart, as values for the template."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from itta.records.collection import shown
from itta.records.story import Event, Picture, Stream
from itta.report.page.charts import Chart, Mark, line_chart
from itta.report.page.numbers import (
    Confused,
    Curve,
    OfClass,
    Summary,
    along,
    by_class,
    confusion,
    known,
    most_confused,
    summarise,
)
from itta.report.tables import Table, percent

EVENTS = 50  # rows
PAIRS = 30
MATRIX = 20  # classes that a confusion matrix can be read with
ITEMS = 40  # of a list in a story


@dataclass(frozen=True)
class Matrix:
    title: str
    counts: list[list[int]]  # [class][answer]
    shares: list[list[float]]  # of the class


@dataclass(frozen=True)
class StreamView:
    """One stream, ready to be shown."""

    id: str
    stream: Stream
    title: str
    summary: Summary
    headline: str
    curve: Curve
    chart: Chart
    events: Table | None
    guard: str
    classes: list[OfClass]
    class_table: Table | None
    matrices: list[Matrix]
    pairs: list[Confused]
    pair_table: Table | None
    pictures: dict[str, list[Picture]]
    settings: Table | None


def view_stream(stream: Stream, id: str) -> StreamView:
    summary, curve, classes = summarise(stream), along(stream), by_class(stream)
    matrices, pairs = confusions(stream)
    return StreamView(
        id,
        stream,
        stream.title or f"{stream.adapter} on {stream.target}",
        summary,
        headline(summary),
        curve,
        stream_chart(stream, curve),
        event_table(stream.events) if stream.events else None,
        guard_text(stream),
        classes,
        class_table(classes) if classes else None,
        matrices,
        pairs,
        pair_table(pairs) if pairs else None,
        sort_pictures(stream.pictures),
        settings_table(stream.settings) if stream.settings else None,
    )


def change(before: float, after: float) -> str:
    """A difference in points, without a sign on nothing.

    >>> change(0.5, 0.512), change(0.5, 0.45), change(0.5, 0.4999)
    ('+1.2', '−5.0', '0.0')
    """
    text = f"{100 * (after - before):+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def headline(s: Summary) -> str:
    if s.before is None or s.after is None:
        return f"{s.images:,} images without labels; {s.changed:,} answers changed"
    return f"{percent(s.before)} → {percent(s.after)} % ({change(s.before, s.after)} points) on {s.labelled:,} images"


def stream_chart(stream: Stream, curve: Curve) -> Chart:
    names = {"before": "before adaptation", "after": stream.adapter, "changed": "answers changed"}
    series = {names[k]: (curve.images, [100 * v for v in values]) for k, values in curve.shares.items()}
    what = "Answers changed" if "changed" in curve.shares else "Accuracy"
    marks = [Mark(e.image, e.action, f"after {e.image:,} images: {told(e)}") for e in stream.events]
    return line_chart(f"{what}, last {curve.window:,} images, %", "images seen", series, marks, start=0)


def told(e: Event) -> str:
    value = "not finite" if e.value is None else f"{e.value:.3g}, limit {e.limit:.3g}"
    return f"{e.watch} ({value}), {e.action}"


def event_table(events: Sequence[Event]) -> Table:
    rows = [
        [f"{e.image:,}", e.watch, "not finite" if e.value is None else f"{e.value:.3g}", f"{e.limit:.3g}", e.action]
        for e in events[:EVENTS]
    ]
    notes = [f"And {len(events) - EVENTS:,} more."] if len(events) > EVENTS else []
    return Table("What the guard did", ["images seen", "watch", "value", "limit", "action"], rows, notes=notes)


def guard_text(stream: Stream) -> str:
    counts = Counter(e.action for e in stream.events)
    if counts:
        times = ", ".join(f"{n} × {action}" for action, n in counts.items())
        return f"The guard intervened {len(stream.events):,} times: {times}."
    if is_guarded(stream):
        return "A guard watched, and had no reason to intervene."
    return "No guard watched this stream."


def is_guarded(stream: Stream) -> bool:
    return bool(stream.events) or stream.adapter.startswith("guarded") or "guard" in stream.settings


def class_table(classes: Sequence[OfClass]) -> Table:
    rows = [[c.name, f"{c.images:,}", percent(c.before), percent(c.after), change(c.before, c.after)] for c in classes]
    return Table("Accuracy by class", ["class", "images", "before, %", "after, %", "difference"], rows)


def confusions(stream: Stream) -> tuple[list[Matrix], list[Confused]]:
    """Two matrices where there are few classes, else the worst pairs."""
    y, before, after = known(stream)
    if not len(y):
        return [], []
    was, now = (confusion(y, answers, len(stream.classes)) for answers in (before, after))
    if len(stream.classes) > MATRIX:
        return [], most_confused(stream.classes, was, now, PAIRS)
    return [matrix("Before adaptation", was), matrix("After adaptation", now)], []


def matrix(title: str, counts: np.ndarray) -> Matrix:
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return Matrix(title, counts.tolist(), shares.round(3).tolist())


def pair_table(pairs: Sequence[Confused]) -> Table:
    rows = [[p.label, p.said, f"{p.before:,}", f"{p.after:,}", f"{p.after - p.before:+,}"] for p in pairs]
    return Table(f"The {len(pairs)} most confused pairs", ["class", "taken for", "before", "after", "difference"], rows)


def sort_pictures(pictures: Sequence[Picture]) -> dict[str, list[Picture]]:
    """Helped and hurt, and those whose change was neither."""
    kinds: dict[str, list[Picture]] = {"Helped": [], "Hurt": [], "Other": []}
    for p in pictures:
        kinds["Helped" if p.after == p.label else "Hurt" if p.before == p.label else "Other"].append(p)
    return kinds


def settings_table(settings: Mapping[str, Any]) -> Table:
    return Table("Settings of the adapter", ["setting", "value"], [[k, plain(v)] for k, v in settings.items()])


def plain(value: Any) -> str:
    """Any value of a JSON file, in words.

    >>> plain({"a": 1, "b": [0.5, None]}), plain([]), plain(12000)
    ('a: 1; b: 0.5, none', 'none', '12,000')
    """
    if isinstance(value, Mapping):
        return "; ".join(f"{k}: {plain(v)}" for k, v in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        more = [f"and {len(value) - ITEMS:,} more"] if len(value) > ITEMS else []
        return ", ".join([*map(plain, value[:ITEMS]), *more]) or "none"
    if value is None or value == "":
        return "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else shown(value)
