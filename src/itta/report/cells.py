"""The cells of a table: the values that the records hold for them, or the reason why a cell is empty."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from itta.metrics.accuracy import mean_and_error
from itta.metrics.selection import ChosenCheckpoint, Key, best_of_search, choose_checkpoints, find_selection
from itta.records import Record
from itta.records.collection import Collection
from itta.records.domainbed import dataset_name
from itta.records.values import as_written, hashable, without_counts
from itta.report.layouts.base import Column, Row
from itta.trial import Trial

Over = Literal["seeds", "trials"]
Split = Literal["auto", "in", "out", "all"]
Place = tuple[str, str, frozenset[str]]  # method, data set, source domains


@dataclass(frozen=True)
class TableOptions:
    """Which measurements count."""

    selection: str = "training-domain"  # a name of metrics.selection.SELECTIONS
    over: Over = "seeds"  # mean over trial seeds with the best hyper-parameters each, or over every trial
    split: Split = "auto"  # of the target
    last_only: bool = False  # choose among the last checkpoints of the runs only


@dataclass(frozen=True)
class Cell:
    values: Mapping[Key, float] = field(default_factory=dict)  # by seed, so that rows can be compared in pairs
    reason: str = ""  # why there are no values
    records: Mapping[Key, Record] = field(default_factory=dict)  # the source of each value
    search: Sequence[ChosenCheckpoint] = ()  # the checkpoint of every trial among which hyper-parameters were selected

    @cached_property
    def statistics(self) -> tuple[float, float]:
        return mean_and_error(list(self.values.values()))

    @property
    def mean(self) -> float:
        return self.statistics[0]

    @property
    def error(self) -> float:
        return self.statistics[1]


def average_cell(cells: Sequence[Cell]) -> Cell:
    """The mean of several cells, trial by trial, over the trials that have a value in every cell."""
    missing = [c.reason for c in cells if not c.values]
    if missing:
        return Cell(reason=missing[0] if len(missing) == len(cells) else f"{len(missing)} of {len(cells)} missing")
    keys = [k for k in cells[0].values if all(k in c.values for c in cells)]
    values = {k: sum(c.values[k] for c in cells) / len(cells) for k in keys}
    return Cell(values, "" if values else "no seed has all")


def calibration_cell(cell: Cell, target: str, split: str) -> Cell:
    """The calibration errors of the records behind a cell."""
    errors = {key: r.calibration.get(target, {}).get(split) for key, r in cell.records.items()}
    values = {key: error for key, error in errors.items() if error is not None}
    return Cell(values, "" if values else cell.reason or "not recorded")


def place_of(trial: Trial) -> Place:
    return trial.algorithm, dataset_name(trial.dataset), frozenset(trial.train_domains)


class RecordIndex:
    """Records by method, data set and sources, and by trial, so that a cell is found quickly."""

    def __init__(self, collection: Collection, options: TableOptions) -> None:
        self.collection, self.options = collection, options
        self.selection = find_selection(options.selection)
        self.models: dict[Place, list[Record]] = defaultdict(list)
        self.adapted: dict[Place, list[Record]] = defaultdict(list)
        self.of_trial: dict[str, list[Record]] = defaultdict(list)
        self.searches: dict[tuple[str, Any, Any, Column], dict[Key, ChosenCheckpoint] | None] = {}
        for r in collection.records:
            self.of_trial[r.trial.key].append(r)
            (self.models if r.adapter == "source" else self.adapted)[place_of(r.trial)].append(r)
        if options.last_only:
            self.models = {k: last_of_each_trial(records) for k, records in self.models.items()}
        self.split = options.split if options.split != "auto" else self.common_split()
        self.notes: Counter[str] = Counter(collection.notes)

    def common_split(self) -> str:
        """DomainBed's split, if every target was measured on it; else the whole domain."""
        targets = [r.accuracy[d] for r in self.collection.records for d in r.trial.test_domains if d in r.accuracy]
        return "in" if all("in" in splits for splits in targets) else "all"

    def cell(self, row: Row, column: Column) -> Cell:
        """The values of a row in a column: choose by the records of the models, then look up those of the row."""
        asked = (row.algorithm, hashable(row.model), hashable(row.steps), column)
        if asked not in self.searches:  # rows that differ in the adapter share a search
            self.searches[asked] = self.search(row, column)
        search = self.searches[asked]
        if search is None:
            return Cell(reason=self.why_no_run(row, column))
        if not search:
            if self.selection.needs:
                self.notes[self.selection.needs] += 1
            return Cell(reason=self.selection.missing)
        choices = best_of_search(search) if self.options.over == "seeds" else search
        found = {key: self.look_up(row, column, choice) for key, choice in choices.items()}
        records = {key: r for key, r in found.items() if isinstance(r, Record)}
        reasons = [reason for reason in found.values() if isinstance(reason, str)]
        for reason in reasons:
            self.notes[f"{row.label}, {column.label}: {reason}"] += 1
        values = {key: r.accuracy[column.target][self.split] for key, r in records.items()}
        return Cell(values, "" if values else reasons[0].partition(":")[0], records, list(search.values()))

    def search(self, row: Row, column: Column) -> dict[Key, ChosenCheckpoint] | None:
        """The chosen checkpoint of every run of the search; None if there are no runs."""

        def models(sources: frozenset[str]) -> Iterator[Record]:
            found = self.models.get((row.algorithm, column.dataset, sources), ())
            return (r for r in found if row.takes_model(r))

        sources = frozenset(column.sources)
        own = [r for r in models(sources) if column.takes(r.trial)]
        if not own:
            return None
        pairs = [r for left_out in column.sources for r in models(sources - {left_out}) if column.takes_pair(r.trial)]
        return choose_checkpoints(own, pairs, column.target, self.selection.rule)

    def look_up(self, row: Row, column: Column, choice: ChosenCheckpoint) -> Record | str:
        """The record of a row at a chosen checkpoint, or the reason why there is none."""
        model = choice.record
        adapted = [r for r in self.of_trial[model.trial.key] if row.takes_adapter(r)]
        found = [r for r in adapted if r.step == model.step] if row.adapter != "source" else [model]
        if not found:
            steps = ", ".join(map(str, sorted({r.step for r in adapted})))
            hint = f", but at {steps}: --last-only?" if steps else ""
            return f"not adapted: {row.adapter} was not run at step {model.step}, which was selected{hint}"
        if len(found) > 1:
            return (
                f"several settings: {row.adapter} was run with {differing_settings(found)}; "
                "choose one with --where adapter.…, stream.… or measured.…"
            )
        splits = found[0].accuracy.get(column.target, {})
        if self.split not in splits:
            known = f"measured on {', '.join(splits)}" if splits else f"{column.target} was not measured"
            return f"no accuracy on split {self.split}: {known}"
        return found[0]

    def why_no_run(self, row: Row, column: Column) -> str:
        def belongs_here(trial: Trial) -> bool:
            return trial.algorithm == row.algorithm and column.takes(trial) and row.takes_steps(trial)

        if any(map(belongs_here, self.collection.started)):
            self.notes[f"{row.label}, {column.label}: a run was started and has no record: it failed, or it runs"] += 1
            return "failed or running"
        adapted = self.adapted.get((row.algorithm, column.dataset, frozenset(column.sources)), ())
        if any(belongs_here(r.trial) and row.takes_model(r) for r in adapted):
            self.notes[f"{row.label}, {column.label}: the records of the training itself are missing"] += 1
            return "no validation"
        return "not run"

    def last_steps(self) -> dict[str, int]:
        """The last recorded step of the model of every trial, by the key of the trial."""
        models = [r for records in self.models.values() for r in records]
        return {r.trial.key: r.step for r in last_of_each_trial(models)}


def last_of_each_trial(records: Sequence[Record]) -> list[Record]:
    last: dict[str, Record] = {}
    for r in records:
        if r.trial.key not in last or r.step >= last[r.trial.key].step:
            last[r.trial.key] = r
    return list(last.values())


def differing_settings(records: Sequence[Record]) -> str:
    """The settings of adapter, stream and device in which records differ, with their values, as text."""
    settings = [
        without_counts(r.adapter_hparams)
        | {f"stream.{name}": value for name, value in r.stream.items()}
        | {"measured.device": r.device, "measured.precision": r.precision}
        for r in records
    ]
    names = [
        k
        for k in dict.fromkeys(k for s in settings for k in s)
        if any(s.get(k) != settings[0].get(k) for s in settings)
    ]
    return "; ".join(f"{k} = {', '.join(as_written(s.get(k)) for s in settings)}" for k in names)
