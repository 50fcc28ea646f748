"""The layouts of tables. A new one is a `Layout`, or a function that makes one from records, and a line in `TABLES`."""

from collections.abc import Callable, Sequence

from itta.records import Record
from itta.registry import look_up
from itta.report.layouts.base import Average, Column, Layout, Row, leave_one_out, one_to_one, with_average
from itta.report.layouts.everything_recorded import everything_recorded
from itta.report.layouts.paper_tables import PAPER_TABLES
from itta.report.layouts.training_steps import split_by_steps

__all__ = [
    "PAPER_TABLES", "TABLES", "Average", "Column", "Layout", "Row", "everything_recorded", "leave_one_out",
    "make_layout", "one_to_one", "with_average",
]  # fmt: skip

TABLES: dict[str, Layout | Callable[[Sequence[Record]], Layout]] = {
    "found": everything_recorded,
    **PAPER_TABLES,
}


def make_layout(table: str, records: Sequence[Record]) -> Layout:
    """The layout of a table by its name, with a row for each number of training steps that a method has.

    The layout of "found" depends on the records in everything else too.
    """
    layout = look_up("table", table, TABLES)
    return split_by_steps(layout if isinstance(layout, Layout) else layout(records), records)
