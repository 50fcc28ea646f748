"""The summary of a whole run on the page: its facts, its results, its cost."""

from collections.abc import Sequence
from dataclasses import dataclass

from itta.metrics.accuracy import mean
from itta.records import Record
from itta.report.page.stream_view import StreamView, is_guarded, point_difference
from itta.report.tables import Table, percent

MOST_ROWS = 300  # of a table
MOST_VALUES = 12  # of a fact


def stream_table(views: Sequence[StreamView]) -> Table:
    """All streams of the page, one row each."""
    rows = []
    for v in views:
        s = v.summary
        score = ["-", "-", "-", "-", "-"]
        if s.before is not None and s.after is not None:
            score = [
                percent(s.before),
                percent(s.after),
                point_difference(s.before, s.after),
                f"{s.helped:,}",
                f"{s.hurt:,}",
            ]
        counts = [
            f"{s.changed:,}",
            *score[3:],
            f"{len(v.stream.events):,}" if is_guarded(v.stream) else "-",
            f"{s.images:,}",
        ]
        rows.append([v.title, *score[:3], *counts])
    columns = ["stream", "before, %", "after, %", "difference", "changed", "helped", "hurt", "guard", "images"]
    same = []
    for name, values in {
        "target": [v.stream.target for v in views],
        "adapter": [v.stream.adapter for v in views],
    }.items():
        if len({*values}) == 1:
            same.append(f"The {name} is {values[0]}.")
        else:
            columns.append(name)
            rows = [[*row, value] for row, value in zip(rows, values)]
    meaning = "Changed, helped, hurt: answers that changed, became right, became wrong. Guard: its interventions."
    return Table("Each stream, before and after adaptation", columns, rows, notes=[" ".join([*same, meaning])])


def record_table(records: Sequence[Record]) -> Table:
    """Every measured accuracy, one row for each record and domain."""
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
    notes = [f"And {len(rows) - MOST_ROWS:,} more."] if len(rows) > MOST_ROWS else []
    columns = ["algorithm", "adapter", "seed", "step", "domain", "in, %", "out, %", "all, %"]
    return Table("Every accuracy in the records", columns, rows[:MOST_ROWS], notes=notes)


def record_facts(records: Sequence[Record]) -> dict[str, str]:
    """Data, domains, methods, networks and seeds of the records."""
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
    return {name: different_values(v) for name, v in values.items() if v}


def different_values(values: Sequence[str]) -> str:
    """The different values as a list; a long list is cut.

    >>> different_values(["a", "b", "a"])
    'a; b'
    """
    different = list(dict.fromkeys(values))
    more = f"; and {len(different) - MOST_VALUES} more" if len(different) > MOST_VALUES else ""
    return "; ".join(different[:MOST_VALUES]) + more


def cost_tables(views: Sequence[StreamView], records: Sequence[Record]) -> list[Table]:
    """Time per image at test time and per step in training, as far as it was measured."""
    tables = []
    rows = [
        [v.title, v.stream.adapter, *cost_cells(v.stream.seconds["before"], v.stream.seconds["after"])]
        for v in views
        if {"before", "after"} <= v.stream.seconds.keys()
    ] or recorded_cost_rows(records)
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


def recorded_cost_rows(records: Sequence[Record]) -> list[list[str]]:
    """The cost of every adapter and of the model as trained, if both were timed on the same model and stream."""
    timed = [r for r in records if "seconds_per_image" in r.logs]
    source = {model_and_stream(r): r.logs["seconds_per_image"] for r in timed if r.adapter == "source"}
    rows = []
    for r in timed:
        before = source.get(model_and_stream(r))
        if r.adapter != "source" and before is not None:
            name = f"{r.trial.algorithm}, seed {r.trial.trial_seed}, {' + '.join(r.accuracy)}"
            rows.append([name, r.adapter, *cost_cells(before, r.logs["seconds_per_image"])])
    return rows[:MOST_ROWS]


def model_and_stream(r: Record) -> tuple[str, int, str]:
    return r.trial.key, r.step, repr(sorted(r.stream.items()))


def cost_cells(before: float, after: float) -> list[str]:
    return [f"{1000 * before:.2f}", f"{1000 * after:.2f}", f"{after / before:.2f}" if before > 0 else "-"]


@dataclass(frozen=True)
class Tile:
    value: str
    name: str


def tiles(views: Sequence[StreamView]) -> list[Tile]:
    """The results of the page in at most four numbers."""
    pairs = [(v.summary.before, v.summary.after) for v in views]
    scores = [(b, a) for b, a in pairs if b is not None and a is not None]
    if not scores:
        changed = sum(v.summary.changed for v in views)
        return [Tile(f"{sum(v.summary.images for v in views):,}", "images"), Tile(f"{changed:,}", "answers changed")]
    helped, hurt = (sum(getattr(v.summary, k) for v in views) for k in ("helped", "hurt"))
    if (
        len({(v.stream.target, v.stream.adapter) for v in views}) > 1
    ):  # a mean over different targets or adapters says nothing
        worst, *_, best = sorted(scores, key=lambda s: s[1] - s[0])
        return [
            Tile(f"{len(views)}", "streams"),
            Tile(point_difference(*worst), "points of difference in the worst"),
            Tile(point_difference(*best), "points of difference in the best"),
            Tile(f"{helped:,} / {hurt:,}", "images helped / hurt, in all"),
        ]
    before, after = (mean(column) for column in zip(*scores))
    over = f", mean of {len(scores)} streams" if len(scores) > 1 else ""
    return [
        Tile(f"{percent(before)} %", f"accuracy before adaptation{over}"),
        Tile(f"{percent(after)} %", f"accuracy after adaptation{over}"),
        Tile(point_difference(before, after), "points of difference"),
        Tile(f"{helped:,} / {hurt:,}", "images helped / hurt"),
    ]
