from collections.abc import Callable

import pytest

from itta.metrics.significance import RowComparison, compare_rows
from itta.records import Record
from itta.records.collection import Collection
from itta.report.cells import TableOptions
from itta.report.comparison import comparison_table, measurements
from itta.report.filled_layout import fill_layout
from itta.report.layouts import PAPER_TABLES

Made = Callable[..., list[Record]]


def test_measurements_pair_by_target_and_seed(made: Made) -> None:
    runs = [r for t in ("photo", "sketch") for s in (0, 1) for r in made("erm", t, s, 0.5) + made("irm", t, s, 0.6)]
    values = measurements(fill_layout(PAPER_TABLES["pacs"], Collection(runs), TableOptions(split="in")))
    assert len(values["ERM"]) == 4
    assert values["ERM"].keys() == values["IRM"].keys()
    (one,) = (c for c in compare_rows(values, "ERM") if c.row == "IRM")
    assert (one.pairs, one.difference) == (4, pytest.approx(0.1))


def test_the_table_shows_points_and_counts_the_comparisons() -> None:
    better = RowComparison("better", 6, 0.125, 0.1, 0.15, 2 / 64, 4 / 64)
    partly = RowComparison("partly", 1, -0.1, -0.1, -0.1, 1.0)
    table = comparison_table([better, partly], "base")
    assert table.rows == [
        ["better", "+12.5", "+10.0 … +15.0", "0.0312", "0.0625", "6"],
        ["partly", "-10.0", "-10.0 … -10.0", "1", "1", "1"],
    ]
    assert "2 comparisons" in table.title
