"""Rows of a table compared with one of them: which measurements are paired, and the table of the differences."""

from collections import defaultdict
from collections.abc import Sequence

from itta.errors import InputError
from itta.metrics.accuracy import mean
from itta.metrics.significance import FEWEST_TARGETS, Measurements, RowComparison, Run
from itta.report.filled_layout import FilledLayout
from itta.report.tables import Table, points

MANY_INTERVALS = 10  # of 95 %: with as many, one that leaves out 0 by chance is likely


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


def best_row(values: Measurements) -> str:
    """The row with the highest mean over the targets, among the rows with the most targets."""
    means = {row: [mean(list(runs.values())) for runs in targets.values() if runs] for row, targets in values.items()}
    most = max(map(len, means.values()), default=0)
    if not most:
        raise InputError("no row has a value, so none is the best.")
    return max((row for row in means if len(means[row]) == most), key=lambda row: mean(means[row]))


def verdict(c: RowComparison) -> str:
    """Whether the interval leaves zero out: "above" or "below" the baseline, else "no"."""
    if c.low is None or c.high is None:
        return "one target"
    return "above" if c.low > 0 else "below" if c.high < 0 else "no"


def comparison_table(comparisons: Sequence[RowComparison], baseline: str) -> Table:
    tested = sum(c.p is not None for c in comparisons)
    correction = f", and p after Holm's correction for {tested} comparisons" if tested else ""
    test = f"; p of the sign-flip test over targets{correction}" if tested else ""
    return Table(
        f"Difference from {baseline} in points, mean over targets; 95 % interval of Student's t over targets{test}.",
        ["", "difference", "95 %", "told apart", "p", "p, Holm", "targets", "pairs"],
        [comparison_row(c) for c in comparisons],
        notes=comparison_notes(comparisons, baseline),
    )


def comparison_row(c: RowComparison) -> list[str]:
    interval = "one target" if c.low is None or c.high is None else f"{points(c.low)} … {points(c.high)}"
    p, adjusted = (f"{x:.3g}" if x is not None else "too few targets" for x in (c.p, c.adjusted))
    return [c.row, points(c.difference), interval, verdict(c), p, adjusted, str(c.targets), str(c.pairs)]


def comparison_notes(comparisons: Sequence[RowComparison], baseline: str) -> list[str]:
    """Which rows cannot be told apart, the unit that counts, and why p-values or intervals are missing."""
    alike = [c.row for c in comparisons if verdict(c) == "no"]
    notes = [f"Cannot be told from {baseline}, because the interval contains 0: {', '.join(alike)}."] if alike else []
    intervals = sum(c.low is not None for c in comparisons)
    if intervals >= MANY_INTERVALS:
        notes.append(f"{intervals} intervals: about {intervals / 20:.0f} of them leave out 0 by chance alone.")
    notes += ["Runs with the same target are not independent: each target counts once, with the mean over its pairs."]
    if any(c.p is None for c in comparisons):
        notes.append(
            f"A p-value needs at least {FEWEST_TARGETS} targets: with fewer, the test cannot give p < 0.05. "
            "More seeds do not help; more targets do."
        )
    if any(c.low is None for c in comparisons):
        notes.append("An interval needs at least 2 targets.")
    return notes if comparisons else []
