"""Tables and texts of a page, as values for the template."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from itta.records import Record
from itta.report.gather import shown
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
from itta.report.selection import mean
from itta.report.story import Event, Picture, Stream
from itta.report.tables import Table, percent

EVENTS = 50  # rows
PAIRS = 30
MATRIX = 20  # classes that a confusion matrix can be read with
RECORDS = 300  # rows
VALUES = 12  # of a list of facts
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
    if stream.adapter.startswith("guarded") or "guard" in stream.settings:
        return "A guard watched, and had no reason to intervene."
    return "No guard watched this stream."


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


def stream_table(views: Sequence[StreamView]) -> Table:
    """All streams of the page, one row each."""
    rows = []
    for v in views:
        s = v.summary
        score = ["-", "-", "-", "-", "-"]
        if s.before is not None and s.after is not None:
            score = [percent(s.before), percent(s.after), change(s.before, s.after), f"{s.helped:,}", f"{s.hurt:,}"]
        counts = [f"{s.changed:,}", *score[3:], f"{len(v.stream.events):,}", f"{s.images:,}"]
        rows.append([v.title, *score[:3], *counts])
    columns = ["stream", "before, %", "after, %", "difference", "changed", "helped", "hurt", "guard", "images"]
    notes = []
    for name, values in {
        "target": [v.stream.target for v in views],
        "adapter": [v.stream.adapter for v in views],
    }.items():
        if len({*values}) == 1:
            notes.append(f"{name}: {values[0]}")
        else:
            columns.append(name)
            rows = [[*row, value] for row, value in zip(rows, values)]
    meaning = (
        "Changed, helped, hurt: images whose answer changed, those that became right, those that became wrong. "
        "Guard: its interventions."
    )
    return Table("Each stream, before and after adaptation", columns, rows, notes=[*notes, meaning])


def record_table(records: Sequence[Record]) -> Table:
    """The records one by one, as they were measured."""
    rows = [
        [
            r.trial.algorithm,
            r.adapter,
            f"{r.trial.trial_seed}",
            f"{r.step:,}",
            domain,
            *(percent(splits[s]) if s in splits else "-" for s in ("in", "out", "all")),
        ]
        for r in records
        for domain, splits in r.accuracy.items()
    ]
    notes = [f"And {len(rows) - RECORDS:,} more."] if len(rows) > RECORDS else []
    columns = ["algorithm", "adapter", "seed", "step", "domain", "in, %", "out, %", "all, %"]
    return Table("Every accuracy in the records", columns, rows[:RECORDS], notes=notes)


def facts(records: Sequence[Record]) -> dict[str, str]:
    """What the records are of."""
    trials = list({r.trial.key: r.trial for r in records}.values())
    values = {
        "data": [t.dataset for t in trials],
        "source domains": [", ".join(t.train_domains) for t in trials],
        "target domains": [", ".join(t.test_domains) for t in trials if t.test_domains],
        "algorithms": [t.algorithm for t in trials],
        "adapters": [r.adapter for r in records if r.adapter != "source"],
        "network": [f"{t.backbone}, {t.weights} weights, {t.image_size} pixels" for t in trials],
        "training steps": [f"{t.steps:,}" for t in trials],
        "seeds": [str(t.trial_seed) for t in trials],
        "draws of hyper-parameters": [str(t.hparams_seed) for t in trials if any(o.hparams_seed for o in trials)],
        "records": [f"{len(records):,}"],
    }
    return {name: listed(v) for name, v in values.items() if v}


def listed(values: Sequence[str]) -> str:
    """Different values, a few of them.

    >>> listed(["a", "b", "a"])
    'a; b'
    """
    different = list(dict.fromkeys(values))
    more = f"; and {len(different) - VALUES} more" if len(different) > VALUES else ""
    return "; ".join(different[:VALUES]) + more


def cost_tables(views: Sequence[StreamView], records: Sequence[Record]) -> list[Table]:
    """Seconds per image at test time, per step in training: as far as they were measured."""
    tables = []
    rows = [
        [v.title, v.stream.adapter, *costs(v.stream.seconds["before"], v.stream.seconds["after"])]
        for v in views
        if {"before", "after"} <= v.stream.seconds.keys()
    ] or recorded_costs(records)
    if rows:
        columns = ["stream", "adapter", "before, ms per image", "after, ms per image", "ratio"]
        tables.append(Table("At test time", columns, rows))
    steps: dict[str, list[float]] = {}
    for r in records:
        if "step_time" in r.logs:
            steps.setdefault(r.trial.algorithm, []).append(r.logs["step_time"])
    if steps:
        rows = [[algorithm, f"{1000 * mean(v):,.1f}"] for algorithm, v in sorted(steps.items())]
        tables.append(Table("In training", ["algorithm", "ms per step"], rows))
    return tables


def recorded_costs(records: Sequence[Record]) -> list[list[str]]:
    """Every adapter beside the model as trained, where both were timed on the same model and stream."""
    timed = [r for r in records if "seconds_per_image" in r.logs]
    source = {on_what(r): r.logs["seconds_per_image"] for r in timed if r.adapter == "source"}
    rows = []
    for r in timed:
        before = source.get(on_what(r))
        if r.adapter != "source" and before is not None:
            name = f"{r.trial.algorithm}, seed {r.trial.trial_seed}, {' + '.join(r.accuracy)}"
            rows.append([name, r.adapter, *costs(before, r.logs["seconds_per_image"])])
    return rows[:RECORDS]


def on_what(r: Record) -> tuple[str, int, str]:
    return r.trial.key, r.step, repr(sorted(r.stream.items()))


def costs(before: float, after: float) -> list[str]:
    return [f"{1000 * before:.2f}", f"{1000 * after:.2f}", f"{after / before:.2f}" if before > 0 else "-"]


@dataclass(frozen=True)
class Tile:
    value: str
    name: str


def tiles(views: Sequence[StreamView]) -> list[Tile]:
    """The page in four numbers."""
    known_ones = [(v.summary.before, v.summary.after) for v in views]
    scores = [(b, a) for b, a in known_ones if b is not None and a is not None]
    if not scores:
        changed = sum(v.summary.changed for v in views)
        return [Tile(f"{sum(v.summary.images for v in views):,}", "images"), Tile(f"{changed:,}", "answers changed")]
    helped, hurt = (sum(getattr(v.summary, k) for v in views) for k in ("helped", "hurt"))
    if len({(v.stream.target, v.stream.adapter) for v in views}) > 1:  # no mean of unlike things
        worst, *_, best = sorted(scores, key=lambda s: s[1] - s[0])
        return [
            Tile(f"{len(views)}", "streams"),
            Tile(change(*worst), "points of difference in the worst"),
            Tile(change(*best), "points of difference in the best"),
            Tile(f"{helped:,} / {hurt:,}", "images helped / hurt, in all"),
        ]
    before, after = (mean(column) for column in zip(*scores))
    over = f", mean of {len(scores)} streams" if len(scores) > 1 else ""
    return [
        Tile(f"{percent(before)} %", f"accuracy before adaptation{over}"),
        Tile(f"{percent(after)} %", f"accuracy after adaptation{over}"),
        Tile(change(before, after), "points of difference"),
        Tile(f"{helped:,} / {hurt:,}", "images helped / hurt"),
    ]
