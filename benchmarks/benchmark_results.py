"""The records of the benchmark as named rows: accuracies by target and seed, and differences between rows."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from itta.errors import InputError
from itta.metrics.accuracy import percent
from itta.metrics.significance import Measurements, RowComparison, compare_rows
from itta.records.collection import collect_records
from itta.report.cells import Cell, TableOptions, average_cell
from itta.report.comparison import measurements, verdict
from itta.report.filled_layout import FilledLayout, fill_layout
from itta.report.layouts import Row, make_layout
from itta.report.layouts.paper_tables import METHODS

NAMES = {name.lower(): name for name in METHODS} | {
    "itta": "ITTA's training", "ttt": "TTT's training", "ttt++": "TTT++'s training", "mt3": "MT3's training",
    "metareg": "MetaReg", "feature_critic": "Feature-Critic",
}  # fmt: skip
ADAPTERS = {
    "source": "no adaptation", "itta": "ITTA's step", "guarded itta+": "`itta+`", "itta+": "`itta+`, not guarded",
    "bn_adapt": "BN adaptation", "lame": "LAME", "tent": "TENT", "shot": "SHOT", "t3a": "T3A", "eata": "EATA",
    "sar": "SAR", "roid": "ROID", "rotta": "RoTTA", "note": "NOTE", "cotta": "CoTTA", "memo": "MEMO", "ttt": "TTT",
    "ttt++": "TTT++", "mt3": "MT3",
}  # fmt: skip
ORDERS = {"iid": "classes at random", "dirichlet": "classes in clusters"}
MARK = re.compile(r", ([\d,]+) training steps$")


@dataclass(frozen=True)
class Results:
    """Everything in some files of records."""

    filled: FilledLayout
    values: Measurements
    rows: tuple[Row, ...]  # with a value at least

    def mean(self, row: Row) -> Cell:
        """The mean over all targets, seed by seed."""
        return average_cell(list(self.filled.targets[row.label].values()))

    def order(self, row: Row) -> str:
        """The order of the stream to which a row adapts."""
        cells = self.filled.targets[row.label].values()
        return str(next((r.stream.get("order", "iid") for c in cells for r in c.records.values()), "iid"))

    def find(self, algorithm: str, adapter: str = "source", order: str = "iid", steps: str = "") -> Row | None:
        """The row of a method with the usual number of steps, or with another one; None if there is none."""
        same = [
            row
            for row in self.rows
            if (row.algorithm, row.adapter) == (algorithm, adapter)
            and budget_of(row) == steps
            and (adapter == "source" or self.order(row) == order)
        ]
        if len(same) > 1:
            labels = "; ".join(row.label for row in same)
            raise InputError(
                f"the records have several settings of one method: {labels}. Keep those of one in the file."
            )
        return same[0] if same else None

    def compare(self, rows: Sequence[Row], base: Row) -> dict[str, RowComparison]:
        """Compare rows with one of them, by label."""
        chosen = {row.label: self.values[row.label] for row in (*rows, base)}
        return {c.row: c for c in compare_rows(chosen, base.label)}

    def difference(self, row: Row, base: Row) -> RowComparison | None:
        return self.compare([row], base).get(row.label)


def read_results(*paths: Path) -> Results | None:
    """Read the files that exist; None if none does."""
    found = [path for path in paths if path.is_file()]
    if not found:
        return None
    collection = collect_records(found)
    layout = make_layout("found", collection.records)
    filled = fill_layout(layout, collection, TableOptions())
    full = tuple(row for row in layout.rows if any(c.values for c in filled.targets[row.label].values()))
    return Results(filled, measurements(filled), full)


def by_mean(results: Results, rows: Sequence[Row]) -> list[Row]:
    """Sort rows by their mean over targets; rows without all targets come last."""
    return sorted(rows, key=lambda row: -(results.mean(row).mean if results.mean(row).values else 0.0))


def best_of(results: Results, rows: Sequence[Row]) -> Row | None:
    """The row with the highest mean among those with all targets."""
    full = [row for row in by_mean(results, rows) if results.mean(row).values]
    return full[0] if full else None


def mean_text(results: Results, row: Row) -> str:
    cell = results.mean(row)
    if not cell.values:
        return cell.reason
    return percent(cell.mean) + (f" ± {percent(cell.error)}" if len(cell.values) > 1 else "")


def name_of(row: Row, adapter: bool = True) -> str:
    """Name a row for readers: method, settings that differ, adapter, and an unusual number of training steps.

    >>> name_of(Row("rsc + tent, 900 training steps", "rsc", "tent"))
    'RSC + TENT, 900 steps'
    """
    settings = ", ".join(f"{name}={value}" for name, value in row.model.items())
    parts = [NAMES.get(row.algorithm, row.algorithm) + (f" ({settings})" if settings else "")]
    if adapter and row.adapter != "source":
        parts.append(ADAPTERS.get(row.adapter, row.adapter))
    return " + ".join(parts) + (f", {budget_of(row)} steps" if budget_of(row) else "")


def budget_of(row: Row) -> str:
    """The unusual number of training steps of a row, as text; "" if it is the usual one.

    >>> budget_of(Row("rsc, 900 training steps", "rsc")), budget_of(Row("rsc", "rsc"))
    ('900', '')
    """
    mark = MARK.search(row.label)
    return mark[1] if mark else ""


def by_steps(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Group rows by their number of training steps, the usual number first."""
    return {steps: [row for row in rows if budget_of(row) == steps] for steps in sorted(map(budget_of, rows))}


def signed(share: float) -> str:
    """
    >>> signed(0.0123), signed(-0.5)
    ('+1.2', '−50.0')
    """
    return f"{100 * share:+.1f}".replace("-", "−")


def with_interval(c: RowComparison | None) -> str:
    """A difference in points, with its 95 % interval over targets."""
    if c is None:
        return ""
    if c.low is None or c.high is None:
        return f"{signed(c.difference)} (one target)"
    return f"{signed(c.difference)} ({signed(c.low)} … {signed(c.high)})"


def listed(names: Sequence[str]) -> str:
    """
    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def lie(names: Sequence[str]) -> str:
    """
    >>> lie(["a"]), lie(["a", "b"])
    ('The interval of a lies', 'The intervals of a and b lie')
    """
    return f"The interval{'s' * (len(names) > 1)} of {listed(names)} lie{'s' * (len(names) == 1)}"


def told_apart(comparisons: Mapping[str, RowComparison], names: Mapping[str, str], base: str) -> str:
    """Say in sentences which rows are above or below the base, and how many cannot be told from it."""
    found = {word: [names[row] for row, c in comparisons.items() if verdict(c) == word] for word in ("above", "below")}
    alike = [names[row] for row, c in comparisons.items() if verdict(c) == "no"]
    parts = [f"{lie(found[word])} {word} {base}." for word in found if found[word]]
    if len(alike) > 1 and not parts:
        parts.append(f"None of the {len(alike)} other methods can be told from {base}: every interval contains 0.")
    elif alike:
        parts.append(f"{f'The other {len(alike)}' if len(alike) > 6 else listed(alike)} cannot be told from {base}.")
    if len(comparisons) >= 10:
        parts.append(f"Of {len(comparisons)} intervals, about {len(comparisons) / 20:.0f} leave out 0 by chance alone.")
    return " ".join(parts)
