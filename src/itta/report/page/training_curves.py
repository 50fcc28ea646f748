"""The training of the runs on the page: a table of the runs, and curves against the step."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from itta.metrics.selection import source_validation
from itta.records import Record
from itta.report.page.charts import Chart, line_chart
from itta.report.page.stream_statistics import block_means
from itta.report.tables import Table, percent
from itta.trial import Trial

MOST_LINES = 8  # runs in a chart
MOST_CHARTS = 9
MOST_RUNS = 100  # rows of the table
TIMES = ("step_time", "seconds_per_image")  # these have a table of their own
Series = dict[str, dict[str, tuple[list[float], list[float]]]]  # quantity -> run -> (steps, values)


@dataclass(frozen=True)
class TrainingRun:
    name: str
    records: list[Record]  # of the model as trained, by step
    steps: Sequence[Mapping[str, Any]]  # the logs of every step


def find_runs(records: Sequence[Record], steps: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[TrainingRun]:
    """The runs with a recorded training, that is with accuracies on the held-out images of their sources."""
    found: dict[str, list[Record]] = defaultdict(list)
    for r in records:
        if r.adapter == "source" and source_validation(r) is not None:
            found[r.trial.key].append(r)
    names = run_names({key: mine[0].trial for key, mine in found.items()})
    runs = [
        TrainingRun(names[key], sorted(mine, key=lambda r: r.step), steps.get(key, ())) for key, mine in found.items()
    ]
    return sorted(runs, key=lambda run: run.name)


def run_names(trials: Mapping[str, Trial]) -> dict[str, str]:
    """Short names of trials, each by the fields in which the trials differ."""
    parts = {
        key: {
            "target": f"to {' + '.join(t.test_domains)}" if t.test_domains else "",
            "sources": f"from {'+'.join(t.train_domains)}",
            "search": f"search {t.hparams_seed}",
            "settings": ", ".join(f"{k}={v}" for k, v in t.overrides.items()),
            "steps": f"{t.steps} steps",
            "backbone": t.backbone,
            "data": t.dataset,
        }
        for key, t in trials.items()
    }
    names = {key: f"{t.algorithm}, seed {t.trial_seed}" for key, t in trials.items()}
    for field in ("target", "sources", "search", "settings", "steps", "backbone", "data"):
        if len(set(names.values())) == len(names):
            break
        if len({p[field] for p in parts.values()}) > 1:
            names = {key: f"{name}, {parts[key][field]}" for key, name in names.items()}
    return names


def target_accuracies(r: Record) -> dict[str, float]:
    """Accuracy on each target: of the whole domain if that was measured, else of the split in."""
    found = {d: r.accuracy.get(d, {}) for d in r.trial.test_domains}
    return {d: splits.get("all", splits.get("in", math.nan)) for d, splits in found.items() if splits}


def training_table(runs: Sequence[TrainingRun]) -> Table:
    rows = []
    for run in runs[:MOST_RUNS]:
        last = run.records[-1]
        best = max(run.records, key=lambda r: source_validation(r) or 0.0)
        target = " / ".join(percent(v) for v in target_accuracies(last).values())
        loss = last.logs.get("loss")
        rows.append(
            [
                run.name,
                f"{last.step:,}",
                percent(source_validation(last) or 0.0),
                f"{percent(source_validation(best) or 0.0)} at {best.step:,}",
                target or "-",
                f"{loss:.3g}" if loss is not None else "-",
            ]
        )
    notes = [f"And {len(runs) - MOST_RUNS:,} more runs."] if len(runs) > MOST_RUNS else []
    columns = ["run", "steps", "held-out sources, %", "best, %", "target, not adapted, %", "mean loss"]
    return Table("Every training, at its last recorded step", columns, rows, notes=notes)


def training_series(runs: Sequence[TrainingRun]) -> Series:
    """Every quantity that can be drawn against the step."""
    found: Series = defaultdict(dict)

    def add(quantity: str, run: str, points: Sequence[tuple[int, float]]) -> None:
        points = [(s, v) for s, v in points if math.isfinite(v)]
        if len(points) > 1:
            found[quantity][run] = block_means([s for s, _ in points], [v for _, v in points])

    for run in runs:
        add("held-out sources, %", run.name, [(r.step, 100 * (source_validation(r) or 0.0)) for r in run.records])
        for target in dict.fromkeys(d for r in run.records for d in target_accuracies(r)):
            values = [(r.step, target_accuracies(r)) for r in run.records]
            add(f"{target}, %", run.name, [(s, 100 * v[target]) for s, v in values if target in v])
        logged = [(line["step"], line) for line in run.steps] or [(r.step, r.logs) for r in run.records]
        for name in dict.fromkeys(k for _, logs in logged for k in logs if k != "step" and k not in TIMES):
            add(name, run.name, [(s, logs[name]) for s, logs in logged if name in logs])
    return dict(found)


def training_charts(series: Series) -> list[Chart]:
    """Charts of the first runs: of the accuracies, then of the loss, then of the other quantities."""
    order = sorted(series, key=lambda q: (not q.endswith("%"), q != "loss"))
    return [line_chart(q, "step", dict(list(series[q].items())[:MOST_LINES])) for q in order[:MOST_CHARTS]]
