"""A layout filled with measurements: every cell, the notes on them, and the columns over all columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from itta.records.collection import Collection
from itta.records.values import as_written
from itta.report.cells import Cell, RecordIndex, TableOptions, average_cell, calibration_cell
from itta.report.layouts.base import Average, Column, Layout
from itta.trial import Trial

BASELINE = "ERM"  # the row that Score compares with
SETTINGS_OF_A_RUN = ("steps", "backbone", "weights", "image_size", "augment", "strict")


@dataclass(frozen=True)
class FilledLayout:
    layout: Layout
    options: TableOptions
    split: str
    cells: Mapping[str, Mapping[str, Cell]]  # row -> label of a column
    targets: Mapping[str, Mapping[Column, Cell]]  # row -> every single target, those behind an average too
    notes: Sequence[str]
    calibration: Mapping[str, Cell] = field(default_factory=dict)  # row -> calibration error over all its targets

    @property
    def most_values(self) -> int:
        """The number of values in the fullest cell."""
        return max((len(c.values) for row in self.cells.values() for c in row.values()), default=0)


def fill_layout(
    layout: Layout, collection: Collection, options: TableOptions, calibration: bool = False
) -> FilledLayout:
    """Fill every cell of a layout from records; ``calibration`` also averages the calibration errors of each row."""
    index = RecordIndex(collection, options)
    cells: dict[str, dict[str, Cell]] = {}
    targets: dict[str, dict[Column, Cell]] = {}
    errors: dict[str, Cell] = {}
    for row in layout.rows:
        found: dict[Column, Cell] = {}
        cells[row.label] = {}
        for column in layout.columns:
            for one in column.of if isinstance(column, Average) else (column,):
                if one not in found:
                    found[one] = index.cell(row, one)
            single = found[column] if isinstance(column, Column) else average_cell([found[c] for c in column.of])
            cells[row.label][column.label] = single
        targets[row.label] = found
        if calibration:
            each = [calibration_cell(cell, c.target, index.split) for c, cell in found.items()]
            errors[row.label] = average_cell(each)
    trials = [choice.record.trial for row in targets.values() for cell in row.values() for choice in cell.search]
    notes = [
        *(f"{note} ({n}×)" if n > 1 else note for note, n in index.notes.items()),
        *notes_on_mixed_settings(trials),
        *notes_on_early_stops(trials, index.last_steps()),
    ]
    return FilledLayout(layout, options, index.split, cells, targets, notes, errors)


def notes_on_mixed_settings(trials: Sequence[Trial]) -> list[str]:
    """A note for each setting in which the runs of a table should agree and do not."""
    found = {name: sorted({as_written(getattr(t, name)) for t in trials}) for name in SETTINGS_OF_A_RUN}
    return [f"the runs differ in {k}: {', '.join(v)}; --where {k}=… keeps one" for k, v in found.items() if len(v) > 1]


def notes_on_early_stops(trials: Sequence[Trial], last_steps: Mapping[str, int]) -> list[str]:
    """A note if runs stopped before their last step; they count nevertheless."""
    early = {t.key for t in trials if last_steps[t.key] < t.steps - 1}  # DomainBed counts steps from 0
    return [f"{len(early)} of the runs stopped before their last step; they count as they are"] if early else []


def row_summaries(filled: FilledLayout) -> dict[str, dict[str, float | None]]:
    """The summaries of each row over all columns, by name.

    Avg. is the mean of the means. Top5 counts the columns in which the row is among the five best. Score counts the
    columns in which mean − error of the row is above mean + error of ERM.
    """
    labels = [c.label for c in filled.layout.columns]
    cells = filled.cells
    base = cells.get(BASELINE)
    found: dict[str, dict[str, float | None]] = {}
    for row, mine in cells.items():
        full = bool(labels) and all(mine[c].values for c in labels)
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
