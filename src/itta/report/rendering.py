"""A filled layout as a table to read, or as plain rows for machines."""

import csv
import io
from collections.abc import Mapping
from typing import Any

from itta.report.cells import BASELINE, Cell, Filled, summarise
from itta.report.paper import Figure
from itta.report.tables import Table, percent

Paper = Mapping[str, Mapping[str, Figure]]  # row -> column -> what the paper prints
CHECKPOINTS = {
    "training-domain": "checkpoint by training-domain validation",
    "leave-one-domain-out": "checkpoint by leave-one-domain-out validation",
    "oracle": "last checkpoint, chosen by the target's own held-out images (oracle)",
}
CALIBRATION = "ECE"


def caption(filled: Filled) -> str:
    """What the numbers are: the measure, the split, the selection, and what ± is taken over."""
    o = filled.options
    split = "the whole target domain" if filled.split == "all" else f"the target's split {filled.split!r}"
    last = ", of last checkpoints only" if o.last_only and o.selection != "oracle" else ""
    over = (
        "trial seeds, each with the hyper-parameters that validate best"
        if o.over == "seeds"
        else "all trials, hyper-parameters not selected"
    )
    return (
        f"{filled.layout.title}. Accuracy on {split}, %; {CHECKPOINTS[o.selection]}{last}; "
        f"mean ± standard error (deviation with divisor n, over √n) over n = {filled.most} {over}."
    )


def present(filled: Filled, paper: Paper | None = None) -> Table:
    """The best of each column stands out; a row of the paper's figures follows each of ours where there is one."""
    labels = [c.label for c in filled.layout.columns]
    summaries = summarise(filled)
    extra = [CALIBRATION] if filled.calibration else []
    rows: list[list[str]] = []
    at: dict[str, int] = {}
    for row in filled.cells:
        at[row] = len(rows)
        cells = [shown_cell(filled.cells[row][c], filled.most) for c in labels]
        counts = [shown_summary(name, value) for name, value in summaries[row].items()]
        rows.append([row, *cells, *counts, *(shown_cell(filled.calibration[row], filled.most) for _ in extra)])
        if paper and row in paper:
            printed = [shown_figure(paper[row].get(c)) for c in (*labels, *filled.layout.summaries)]
            rows.append([f"{row}, paper", *printed, *("" for _ in extra)])
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
    return Table(caption(filled), ["", *labels, *filled.layout.summaries, *extra], rows, best_cells(filled, at), notes)


def shown_cell(cell: Cell, most: int) -> str:
    if not cell.values:
        return cell.reason
    fewer = f" (n={len(cell.values)})" if len(cell.values) < most else ""
    return percent(cell.mean) + (f" ± {percent(cell.error)}" if len(cell.values) > 1 else "") + fewer


def shown_summary(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return percent(value) if name == "Avg." else f"{value:.0f}"


def shown_figure(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    return (
        f"{figure.mean:g}"
        if isinstance(figure.mean, int)
        else f"{figure.mean:.1f}" + (f" ± {figure.error:.1f}" if figure.error is not None else "")
    )


def best_cells(filled: Filled, at: Mapping[str, int]) -> set[tuple[int, int]]:
    """Where more than one row has a number, the largest."""
    best = set()
    for j, column in enumerate(filled.layout.columns, 1):
        means = {row: cells[column.label].mean for row, cells in filled.cells.items() if cells[column.label].values}
        if len(means) > 1:
            best |= {(at[row], j) for row, mean in means.items() if mean == max(means.values())}
    return best


def plain_rows(filled: Filled, paper: Paper | None = None) -> list[dict[str, Any]]:
    """One row for each cell, numbers as numbers: percentages, not rounded."""
    rows = []
    summaries = summarise(filled)
    for row, cells in filled.cells.items():
        measured = {c: numbers(cell) for c, cell in cells.items()}
        if filled.calibration:
            measured[CALIBRATION] = numbers(filled.calibration[row])
        for name, value in summaries[row].items():
            shown = value if value is None or name != "Avg." else 100 * value
            measured[name] = {"mean": shown, "error": None, "n": None, "missing": ""}
        for column, values in measured.items():
            figure = (paper or {}).get(row, {}).get(column)
            theirs = {"paper_mean": figure.mean if figure else None, "paper_error": figure.error if figure else None}
            rows.append({"row": row, "column": column, **values, **(theirs if paper else {})})
    return rows


def numbers(cell: Cell) -> dict[str, Any]:
    if not cell.values:
        return {"mean": None, "error": None, "n": 0, "missing": cell.reason}
    return {"mean": 100 * cell.mean, "error": 100 * cell.error, "n": len(cell.values), "missing": ""}


def to_csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
