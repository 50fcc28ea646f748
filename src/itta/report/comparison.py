"""Rows of a table compared with one of them: which measurements are paired, and the table of the differences."""

from collections import defaultdict
from collections.abc import Sequence

from itta.metrics.significance import FEWEST_TARGETS, RowComparison, Run
from itta.report.filled_layout import FilledLayout
from itta.report.tables import Table, points


def measurements(filled: FilledLayout) -> dict[str, dict[str, dict[Run, float]]]:
    """The accuracies of a table: row -> target -> (sources, seed) -> accuracy.

    A target is a domain of a data set. Columns that differ only in the sources have the same target.
    """
    found: dict[str, dict[str, dict[Run, float]]] = {row: defaultdict(dict) for row in filled.targets}
    for row, cells in filled.targets.items():
        for column, cell in cells.items():
            for key, value in cell.values.items():
                found[row][f"{column.dataset}/{column.target}"][column.sources, key] = value
    return found


def comparison_table(comparisons: Sequence[RowComparison], baseline: str) -> Table:
    tested = sum(c.p is not None for c in comparisons)
    correction = f", and p after Holm's correction for {tested} comparisons" if tested else ""
    test = f"; p of the sign-flip test over targets{correction}" if tested else ""
    return Table(
        f"Difference from {baseline} in points, mean over targets; 95 % interval of Student's t over targets{test}.",
        ["", "difference", "95 %", "p", "p, Holm", "targets", "pairs"],
        [comparison_row(c) for c in comparisons],
        notes=comparison_notes(comparisons),
    )


def comparison_row(c: RowComparison) -> list[str]:
    interval = "one target" if c.low is None or c.high is None else f"{points(c.low)} … {points(c.high)}"
    p, adjusted = (f"{x:.3g}" if x is not None else "too few targets" for x in (c.p, c.adjusted))
    return [c.row, points(c.difference), interval, p, adjusted, str(c.targets), str(c.pairs)]


def comparison_notes(comparisons: Sequence[RowComparison]) -> list[str]:
    """The unit that counts, and the reason why p-values or intervals are missing."""
    notes = ["Runs with the same target are not independent: each target counts once, with the mean over its pairs."]
    if any(c.p is None for c in comparisons):
        notes.append(
            f"A p-value needs at least {FEWEST_TARGETS} targets: with fewer, the test cannot give p < 0.05. "
            "More seeds do not help; more targets do."
        )
    if any(c.low is None for c in comparisons):
        notes.append("An interval needs at least 2 targets.")
    return notes if comparisons else []
