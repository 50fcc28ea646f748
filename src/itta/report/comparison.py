"""Rows of a table compared with one of them: which measurements are paired, and the table of the differences."""

from collections.abc import Sequence

from itta.metrics.selection import Key
from itta.metrics.significance import RowComparison
from itta.report.filled_layout import FilledLayout
from itta.report.tables import Table, points


def measurements(filled: FilledLayout) -> dict[str, dict[tuple[str, Key], float]]:
    """The accuracies of a table: row -> (target, seed) -> accuracy."""
    return {
        row: {(str(column), key): value for column, cell in cells.items() for key, value in cell.values.items()}
        for row, cells in filled.targets.items()
    }


def comparison_table(comparisons: Sequence[RowComparison], baseline: str) -> Table:
    rows = [
        [
            c.row,
            points(c.difference),
            f"{points(c.low)} … {points(c.high)}",
            f"{c.p:.3g}",
            f"{c.adjusted:.3g}",
            str(c.pairs),
        ]
        for c in comparisons
    ]
    return Table(
        f"Difference from {baseline} in points, with its 95 % interval (paired bootstrap), Wilcoxon's p, and p after "
        f"Holm's correction for {len(comparisons)} comparisons.",
        ["", "difference", "95 %", "p", "p, Holm", "pairs"],
        rows,
    )
