"""A filled layout rendered: as a table to read, and as rows of numbers for programs."""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from itta.metrics.selection import find_selection
from itta.report.cells import Cell
from itta.report.filled_layout import BASELINE, FilledLayout, row_summaries
from itta.report.paper import Figure
from itta.report.tables import Table, percent
from itta.text import write_csv

Paper = Mapping[str, Mapping[str, Figure]]  # row -> column -> the number that the paper prints
CALIBRATION = "ECE"


def table_caption(filled: FilledLayout) -> str:
    """Name the measure, the split, the selection, and the trials behind mean and ±."""
    o = filled.options
    split = "the whole target domain" if filled.split == "all" else f"the target's split {filled.split!r}"
    last = ", of last checkpoints only" if o.last_only and o.selection != "oracle" else ""
    over = (
        "trial seeds, each with the hyper-parameters that validate best"
        if o.over == "seeds"
        else "all trials, hyper-parameters not selected"
    )
    return (
        f"{filled.layout.title}. Accuracy on {split}, %; {find_selection(o.selection).caption}{last}; "
        f"mean ± standard error (deviation with divisor n, over √n) over n = {filled.most_values} {over}."
    )


def render_table(filled: FilledLayout, paper: Paper | None = None) -> Table:
    """The best cell of each column is marked. With ``paper``, the paper's numbers follow each row that it has."""
    labels = [c.label for c in filled.layout.columns]
    summaries = row_summaries(filled)
    extra = [CALIBRATION] if filled.calibration else []
    rows: list[list[str]] = []
    numbers: dict[str, int] = {}  # of our rows in the table
    for row in filled.cells:
        numbers[row] = len(rows)
        cells = [cell_text(filled.cells[row][c], filled.most_values) for c in labels]
        counts = [summary_text(name, value) for name, value in summaries[row].items()]
        rows.append([row, *cells, *counts, *(cell_text(filled.calibration[row], filled.most_values) for _ in extra)])
        if paper and row in paper:
            printed = [figure_text(paper[row].get(c)) for c in (*labels, *filled.layout.summaries)]
            rows.append([f"{row}, paper", *printed, *("" for _ in extra)])
    columns = ["", *labels, *filled.layout.summaries, *extra]
    notes = table_notes(filled, paper)
    return Table(table_caption(filled), columns, rows, best_cells(filled, numbers), notes)


def table_notes(filled: FilledLayout, paper: Paper | None) -> list[str]:
    notes = [*filled.notes]
    if filled.calibration:
        notes.append(f"{CALIBRATION}: expected calibration error, %, 15 bins, mean over the targets.")
    if filled.layout.summaries:
        notes.append(
            f"Top5: columns in which a row is among the five best. Score: columns in which its mean − error is above "
            f"{BASELINE}'s mean + error."
        )
    if paper:
        notes.append("Paper: Chen et al., CVPR 2023, arXiv:2304.04494, as printed; ResNet-18, 60 trials per target.")
    return notes


def cell_text(cell: Cell, most_values: int) -> str:
    """Mean ± error; the number of values too if it is below that of the fullest cell."""
    if not cell.values:
        return cell.reason
    fewer = f" (n={len(cell.values)})" if len(cell.values) < most_values else ""
    return percent(cell.mean) + (f" ± {percent(cell.error)}" if len(cell.values) > 1 else "") + fewer


def summary_text(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return percent(value) if name == "Avg." else f"{value:.0f}"


def figure_text(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    if isinstance(figure.mean, int):
        return f"{figure.mean:g}"
    return f"{figure.mean:.1f}" + (f" ± {figure.error:.1f}" if figure.error is not None else "")


def best_cells(filled: FilledLayout, numbers: Mapping[str, int]) -> set[tuple[int, int]]:
    """(row, column) of the largest mean in each column where more than one row has a mean."""
    best = set()
    for j, column in enumerate(filled.layout.columns, 1):
        means = {row: cells[column.label].mean for row, cells in filled.cells.items() if cells[column.label].values}
        if len(means) > 1:
            best |= {(numbers[row], j) for row, mean in means.items() if mean == max(means.values())}
    return best


def numeric_rows(filled: FilledLayout, paper: Paper | None = None) -> list[dict[str, Any]]:
    """One row for each cell. Numbers are percentages and not rounded."""
    rows = []
    summaries = row_summaries(filled)
    for row, cells in filled.cells.items():
        measured = {c: cell_numbers(cell) for c, cell in cells.items()}
        if filled.calibration:
            measured[CALIBRATION] = cell_numbers(filled.calibration[row])
        for name, value in summaries[row].items():
            mean = value if value is None or name != "Avg." else 100 * value
            measured[name] = {"mean": mean, "error": None, "n": None, "missing": ""}
        for column, values in measured.items():
            figure = (paper or {}).get(row, {}).get(column)
            theirs = {"paper_mean": figure.mean if figure else None, "paper_error": figure.error if figure else None}
            rows.append({"row": row, "column": column, **values, **(theirs if paper else {})})
    return rows


def cell_numbers(cell: Cell) -> dict[str, Any]:
    if not cell.values:
        return {"mean": None, "error": None, "n": 0, "missing": cell.reason}
    return {"mean": 100 * cell.mean, "error": 100 * cell.error, "n": len(cell.values), "missing": ""}


def csv_text(tables: Sequence[Table], rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each cell."""
    text = io.StringIO()
    columns = list(rows[0]) if rows else ["row", "column", *cell_numbers(Cell())]
    write_csv(text, columns, rows)
    return text.getvalue()


Format = Callable[[Sequence[Table], Sequence[Mapping[str, Any]]], str]  # tables, and the numbers of the first -> text
FORMATS: dict[str, Format] = {
    "markdown": lambda tables, rows: "\n\n".join(t.to_text() for t in tables) + "\n",
    "latex": lambda tables, rows: "\n\n".join(t.to_latex() for t in tables) + "\n",  # for booktabs
    "csv": csv_text,
    "html": lambda tables, rows: "\n\n".join(t.to_html() for t in tables) + "\n",
}
