"""Fill a layout with what was measured, and say of every empty cell why it is empty."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from itta.metrics.accuracy import mean_and_error
from itta.metrics.selection import SELECTIONS, Choice, Key, best_of_search, choose
from itta.records import Record
from itta.records.collection import Gathered, shown
from itta.records.domainbed import dataset_name
from itta.report.layouts import Average, Column, Layout, Row, plain, without_counts
from itta.trial import Trial

BASELINE = "ERM"  # the row that Score compares with
SETTINGS_OF_A_RUN = ("steps", "backbone", "weights", "image_size", "augment", "strict")


@dataclass(frozen=True)
class Options:
    selection: str = "training-domain"
    over: Literal["seeds", "trials"] = "seeds"  # trial seeds with the best hyper-parameters each, or every trial
    split: Literal["auto", "in", "out", "all"] = "auto"  # of the target
    last_only: bool = False  # consider the last checkpoint of each run only


@dataclass(frozen=True)
class Cell:
    values: Mapping[Key, float] = field(default_factory=dict)  # by seed, so that rows can be compared in pairs
    reason: str = ""  # why there are none
    records: Mapping[Key, Record] = field(default_factory=dict)  # where the values come from
    search: Sequence[Choice] = ()  # the checkpoint of every trial, from which hyper-parameters were selected

    @cached_property
    def statistics(self) -> tuple[float, float]:
        return mean_and_error(list(self.values.values()))

    @property
    def mean(self) -> float:
        return self.statistics[0]

    @property
    def error(self) -> float:
        return self.statistics[1]


@dataclass(frozen=True)
class Filled:
    layout: Layout
    options: Options
    split: str
    cells: Mapping[str, Mapping[str, Cell]]  # row -> label of a column
    targets: Mapping[str, Mapping[Column, Cell]]  # row -> every single target, those behind an average too
    notes: Sequence[str]
    calibration: Mapping[str, Cell] = field(default_factory=dict)  # row -> error over all its columns

    @property
    def most(self) -> int:
        """Values in the fullest cell: what has fewer says so."""
        return max((len(c.values) for row in self.cells.values() for c in row.values()), default=0)


Place = tuple[str, str, frozenset[str]]  # method, data set, source domains


def place_of(trial: Trial) -> Place:
    return trial.algorithm, dataset_name(trial.dataset), frozenset(trial.train_domains)


class Ledger:
    """Records where they are found quickly: by method, data set and sources, and by trial."""

    def __init__(self, gathered: Gathered, options: Options) -> None:
        self.gathered, self.options = gathered, options
        self.models: dict[Place, list[Record]] = defaultdict(list)
        self.adapted: dict[Place, list[Record]] = defaultdict(list)
        self.of_trial: dict[str, list[Record]] = defaultdict(list)
        self.searches: dict[tuple[str, Any, Column], dict[Key, Choice] | None] = {}
        for r in gathered.records:
            self.of_trial[r.trial.key].append(r)
            (self.models if r.adapter == "source" else self.adapted)[place_of(r.trial)].append(r)
        if options.last_only:
            self.models = {k: last_of_each(records) for k, records in self.models.items()}
        self.split = options.split if options.split != "auto" else self.common_split()
        self.notes: Counter[str] = Counter(gathered.notes)

    def common_split(self) -> str:
        """DomainBed's split, if everything was measured on it; else the whole domain."""
        targets = [r.accuracy[d] for r in self.gathered.records for d in r.trial.test_domains if d in r.accuracy]
        return "in" if all("in" in splits for splits in targets) else "all"

    def cell(self, row: Row, column: Column) -> Cell:
        """The values of a row in a column: choose by the models' records, then look up what the row asks for."""
        asked = (row.algorithm, plain(row.model), column)
        if asked not in self.searches:  # rows that differ in the adapter share it
            self.searches[asked] = self.search(row, column)
        search = self.searches[asked]
        if search is None:
            return Cell(reason=self.why_no_run(row, column))
        if not search:
            return Cell(reason=self.why_no_choice())
        choices = best_of_search(search) if self.options.over == "seeds" else search
        found = {key: self.look_up(row, column, choice) for key, choice in choices.items()}
        records = {key: r for key, r in found.items() if isinstance(r, Record)}
        reasons = [reason for reason in found.values() if isinstance(reason, str)]
        for reason in reasons:
            self.notes[f"{row.label}, {column.label}: {reason}"] += 1
        values = {key: r.accuracy[column.target][self.split] for key, r in records.items()}
        return Cell(values, "" if values else reasons[0].partition(":")[0], records, list(search.values()))

    def search(self, row: Row, column: Column) -> dict[Key, Choice] | None:
        """A checkpoint for every run of the search, as far as one can be chosen; nothing if there are no runs."""

        def models(sources: frozenset[str]) -> Iterator[Record]:
            found = self.models.get((row.algorithm, column.dataset, sources), ())
            return (r for r in found if row.takes_model(r))

        sources = frozenset(column.sources)
        own = [r for r in models(sources) if column.takes(r.trial)]
        if not own:
            return None
        pairs = [r for left_out in column.sources for r in models(sources - {left_out}) if column.takes_pair(r.trial)]
        return choose(own, pairs, column.target, SELECTIONS[self.options.selection])

    def look_up(self, row: Row, column: Column, choice: Choice) -> Record | str:
        """What a row measured at a chosen checkpoint, or why it did not."""
        model = choice.record
        adapted = [r for r in self.of_trial[model.trial.key] if row.takes_adapter(r)]
        found = [r for r in adapted if r.step == model.step] if row.adapter != "source" else [model]
        if not found:
            steps = ", ".join(map(str, sorted({r.step for r in adapted})))
            hint = f", but at {steps}: --last-only?" if steps else ""
            return f"not adapted: {row.adapter} was not run at step {model.step}, which was selected{hint}"
        if len(found) > 1:
            return (
                f"several settings: {row.adapter} was run with {differences(found)}; say which with --where adapter.…"
            )
        splits = found[0].accuracy.get(column.target, {})
        if self.split not in splits:
            known = f"measured on {', '.join(splits)}" if splits else f"{column.target} was not measured"
            return f"no accuracy on split {self.split}: {known}"
        return found[0]

    def why_no_run(self, row: Row, column: Column) -> str:
        def is_it(trial: Trial) -> bool:
            return trial.algorithm == row.algorithm and column.takes(trial)

        if any(map(is_it, self.gathered.started)):
            self.notes[f"{row.label}, {column.label}: started, nothing recorded: failed, or still running"] += 1
            return "failed or running"
        adapted = self.adapted.get((row.algorithm, column.dataset, frozenset(column.sources)), ())
        if any(is_it(r.trial) and row.takes_model(r) for r in adapted):
            self.notes[f"{row.label}, {column.label}: the records of the training itself are missing"] += 1
            return "no validation"
        return "not run"

    def why_no_choice(self) -> str:
        if self.options.selection == "leave-one-domain-out":
            self.notes["leave-one-domain-out needs runs that leave out each source domain too, at the same steps"] += 1
            return "no pair runs"
        return "no validation"


def last_of_each(records: Sequence[Record]) -> list[Record]:
    last: dict[str, Record] = {}
    for r in records:
        if r.trial.key not in last or r.step >= last[r.trial.key].step:
            last[r.trial.key] = r
    return list(last.values())


def differences(records: Sequence[Record]) -> str:
    settings = [without_counts(r.adapter_hparams) for r in records]
    names = [
        k
        for k in dict.fromkeys(k for s in settings for k in s)
        if any(s.get(k) != settings[0].get(k) for s in settings)
    ]
    return "; ".join(f"{k} = {', '.join(shown(s.get(k)) for s in settings)}" for k in names)


def fill(layout: Layout, gathered: Gathered, options: Options, calibration: bool = False) -> Filled:
    ledger = Ledger(gathered, options)
    cells: dict[str, dict[str, Cell]] = {}
    targets: dict[str, dict[Column, Cell]] = {}
    errors: dict[str, Cell] = {}
    for row in layout.rows:
        found: dict[Column, Cell] = {}
        cells[row.label] = {}
        for column in layout.columns:
            for one in column.of if isinstance(column, Average) else (column,):
                if one not in found:
                    found[one] = ledger.cell(row, one)
            single = found[column] if isinstance(column, Column) else average([found[c] for c in column.of])
            cells[row.label][column.label] = single
        targets[row.label] = found
        if calibration:
            errors[row.label] = average([calibration_of(cell, c.target, ledger.split) for c, cell in found.items()])
    runs = [choice.record.trial for row in targets.values() for cell in row.values() for choice in cell.search]
    notes = [
        *(f"{note} ({n}×)" if n > 1 else note for note, n in ledger.notes.items()),
        *mixed(runs),
        *cut(ledger, runs),
    ]
    return Filled(layout, options, ledger.split, cells, targets, notes, errors)


def calibration_of(cell: Cell, target: str, split: str) -> Cell:
    """The calibration errors of the records behind a cell."""
    errors = {key: r.calibration.get(target, {}).get(split) for key, r in cell.records.items()}
    values = {key: error for key, error in errors.items() if error is not None}
    return Cell(values, "" if values else cell.reason or "not recorded")


def average(cells: Sequence[Cell]) -> Cell:
    """Trial by trial, over those that have every column."""
    missing = [c.reason for c in cells if not c.values]
    if missing:
        return Cell(reason=missing[0] if len(missing) == len(cells) else f"{len(missing)} of {len(cells)} missing")
    keys = [k for k in cells[0].values if all(k in c.values for c in cells)]
    values = {k: sum(c.values[k] for c in cells) / len(cells) for k in keys}
    return Cell(values, "" if values else "no seed has all")


def mixed(trials: Sequence[Trial]) -> list[str]:
    """A word on runs that should not stand in one table."""
    found = {name: sorted({shown(getattr(t, name)) for t in trials}) for name in SETTINGS_OF_A_RUN}
    return [f"the runs differ in {k}: {', '.join(v)}; --where {k}=… keeps one" for k, v in found.items() if len(v) > 1]


def cut(ledger: Ledger, trials: Sequence[Trial]) -> list[str]:
    """A word on runs that ended too early, which count as they are."""
    last = {r.trial.key: r.step for r in last_of_each([r for records in ledger.models.values() for r in records])}
    early = {t.key for t in trials if last[t.key] < t.steps - 1}  # DomainBed counts steps from 0
    return [f"{len(early)} runs stopped before their last step, and count as they are"] if early else []


def summarise(filled: Filled) -> dict[str, dict[str, float | None]]:
    """The columns over columns: mean of means, how often among the best five, how often clearly above ERM.

    Score counts the columns in which mean − error is above ERM's mean + error.
    """
    labels = [c.label for c in filled.layout.columns]
    cells = filled.cells
    base = cells.get(BASELINE)
    found: dict[str, dict[str, float | None]] = {}
    for row, mine in cells.items():
        full = all(mine[c].values for c in labels)
        ranks = {
            c: sum(o[c].mean > mine[c].mean for o in cells.values() if o[c].values) for c in labels if mine[c].values
        }
        above = [
            mine[c].mean - mine[c].error > base[c].mean + base[c].error
            for c in ranks
            if base is not None and base[c].values
        ]
        values = {
            "Avg.": sum(mine[c].mean for c in labels) / len(labels) if full else None,
            "Top5": float(sum(rank < 5 for rank in ranks.values())) if ranks else None,
            "Score": float(sum(above)) if above and row != BASELINE else None,
        }
        found[row] = {name: values[name] for name in filled.layout.summaries}
    return found
