"""The view of a stream on the page: its tables, texts and chart, as values for the template."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from itta.records.story import Event, Picture, Stream
from itta.records.values import as_written
from itta.report.page.charts import Chart, Mark, line_chart
from itta.report.page.diagnosis_view import DiagnosisView, view_diagnosis
from itta.report.page.stream_statistics import (
    ClassAccuracy,
    ConfusedPair,
    RunningShares,
    StreamSummary,
    class_accuracies,
    confusion_counts,
    labelled_answers,
    most_confused,
    running_shares,
    stream_summary,
)
from itta.report.tables import Table, percent

MOST_EVENTS = 50  # rows of the table
MOST_PAIRS = 30
MOST_CLASSES = 20  # of a confusion matrix that can be read
MOST_ITEMS = 40  # of a list


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
    summary: StreamSummary
    headline: str
    curve: RunningShares
    chart: Chart
    events: Table | None
    guard: str
    classes: list[ClassAccuracy]
    class_table: Table | None
    matrices: list[Matrix]
    pairs: list[ConfusedPair]
    pair_table: Table | None
    pictures: dict[str, list[Picture]]
    settings: Table | None
    diagnosis: DiagnosisView | None


def view_stream(stream: Stream, id: str) -> StreamView:
    summary, curve, classes = stream_summary(stream), running_shares(stream), class_accuracies(stream)
    matrices, pairs = confusion_views(stream)
    return StreamView(
        id,
        stream,
        stream.title or f"{stream.adapter} on {stream.target}",
        summary,
        headline(summary, stream.estimate),
        curve,
        stream_chart(stream, curve),
        event_table(stream.events) if stream.events else None,
        guard_text(stream),
        classes,
        class_table(classes) if classes else None,
        matrices,
        pairs,
        pair_table(pairs) if pairs else None,
        pictures_by_kind(stream.pictures),
        settings_table(stream.settings) if stream.settings else None,
        view_diagnosis(stream),
    )


def point_difference(before: float, after: float) -> str:
    """A difference in percentage points; zero has no sign.

    >>> point_difference(0.5, 0.512), point_difference(0.5, 0.45), point_difference(0.5, 0.4999)
    ('+1.2', '−5.0', '0.0')
    """
    text = f"{100 * (after - before):+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def headline(s: StreamSummary, estimate: Mapping[str, float] | None = None) -> str:
    if s.before is None or s.after is None:
        said = f"; {estimate_text(estimate)}" if estimate else ""
        return f"{s.images:,} images without labels; {s.changed:,} answers changed{said}"
    points = point_difference(s.before, s.after)
    return f"{percent(s.before)} → {percent(s.after)} % ({points} points) on {s.labelled:,} images"


def estimate_text(estimate: Mapping[str, float]) -> str:
    """The estimated accuracy and its interval in words.

    >>> estimate_text({"accuracy": 0.551, "low": 0.48, "high": 0.62})
    'estimated accuracy 55.1 % (48.0 to 62.0)'
    """
    low, high = (percent(estimate.get(end, estimate["accuracy"])) for end in ("low", "high"))
    return f"estimated accuracy {percent(estimate['accuracy'])} % ({low} to {high})"


def stream_chart(stream: Stream, curve: RunningShares) -> Chart:
    names = {"before": "before adaptation", "after": stream.adapter, "changed": "answers changed"}
    series = {names.get(k, k): (curve.images, [100 * v for v in values]) for k, values in curve.shares.items()}
    quantity = "Answers changed" if "changed" in curve.shares else "Accuracy"
    quantity = f"{quantity} and estimated accuracy" if "estimate" in curve.shares else quantity
    marks = [Mark(e.image, e.action, f"after {e.image:,} images: {event_text(e)}") for e in stream.events]
    return line_chart(f"{quantity}, last {curve.window:,} images, %", "images seen", series, marks, start=0)


def event_text(e: Event) -> str:
    value = "not finite" if e.value is None else f"{e.value:.3g}, limit {e.limit:.3g}"
    return f"{e.watch} ({value}), {e.action}"


def event_table(events: Sequence[Event]) -> Table:
    rows = [
        [f"{e.image:,}", e.watch, "not finite" if e.value is None else f"{e.value:.3g}", f"{e.limit:.3g}", e.action]
        for e in events[:MOST_EVENTS]
    ]
    notes = [f"And {len(events) - MOST_EVENTS:,} more."] if len(events) > MOST_EVENTS else []
    return Table("Interventions of the guard", ["images seen", "watch", "value", "limit", "action"], rows, notes=notes)


def guard_text(stream: Stream) -> str:
    counts = Counter(e.action for e in stream.events)
    if counts:
        times = ", ".join(f"{n} × {action}" for action, n in counts.items())
        return f"The guard intervened {len(stream.events):,} times: {times}."
    if is_guarded(stream):
        return "A guard watched this stream and did not intervene."
    return "No guard watched this stream."


def is_guarded(stream: Stream) -> bool:
    return bool(stream.events) or stream.adapter.startswith("guarded") or "guard" in stream.settings


def class_table(classes: Sequence[ClassAccuracy]) -> Table:
    rows = [
        [c.name, f"{c.images:,}", percent(c.before), percent(c.after), point_difference(c.before, c.after)]
        for c in classes
    ]
    return Table("Accuracy by class", ["class", "images", "before, %", "after, %", "difference"], rows)


def confusion_views(stream: Stream) -> tuple[list[Matrix], list[ConfusedPair]]:
    """Two matrices if there are few classes, else the most confused pairs."""
    y, before, after = labelled_answers(stream)
    if not len(y):
        return [], []
    was, now = (confusion_counts(y, answers, len(stream.classes)) for answers in (before, after))
    if len(stream.classes) > MOST_CLASSES:
        return [], most_confused(stream.classes, was, now, MOST_PAIRS)
    return [matrix("Before adaptation", was), matrix("After adaptation", now)], []


def matrix(title: str, counts: np.ndarray) -> Matrix:
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return Matrix(title, counts.tolist(), shares.round(3).tolist())


def pair_table(pairs: Sequence[ConfusedPair]) -> Table:
    rows = [[p.label, p.said, f"{p.before:,}", f"{p.after:,}", f"{p.after - p.before:+,}"] for p in pairs]
    return Table(f"The {len(pairs)} most confused pairs", ["class", "taken for", "before", "after", "difference"], rows)


def pictures_by_kind(pictures: Sequence[Picture]) -> dict[str, list[Picture]]:
    """Pictures that adaptation helped, those that it hurt, and the others."""
    kinds: dict[str, list[Picture]] = {"Helped": [], "Hurt": [], "Other": []}
    for p in pictures:
        kinds["Helped" if p.after == p.label else "Hurt" if p.before == p.label else "Other"].append(p)
    return kinds


def settings_table(settings: Mapping[str, Any]) -> Table:
    return Table("Settings of the adapter", ["setting", "value"], [[k, value_text(v)] for k, v in settings.items()])


def value_text(value: Any) -> str:
    """Any value of a JSON file, as text for a reader.

    >>> value_text({"a": 1, "b": [0.5, None]}), value_text([]), value_text(12000)
    ('a: 1; b: 0.5, none', 'none', '12,000')
    """
    if isinstance(value, Mapping):
        return "; ".join(f"{k}: {value_text(v)}" for k, v in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        more = [f"and {len(value) - MOST_ITEMS:,} more"] if len(value) > MOST_ITEMS else []
        return ", ".join([*map(value_text, value[:MOST_ITEMS]), *more]) or "none"
    if value is None or value == "":
        return "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else as_written(value)
