from collections.abc import Callable

import pytest

from itta.errors import InputError
from itta.metrics.significance import RowComparison, compare_rows
from itta.records import Record
from itta.records.collection import Collection
from itta.report.cells import TableOptions
from itta.report.comparison import best_row, comparison_table, measurements
from itta.report.filled_layout import fill_layout
from itta.report.layouts import PAPER_TABLES, everything_recorded

Made = Callable[..., list[Record]]


def test_measurements_pair_by_target_and_seed(made: Made) -> None:
    runs = [r for t in ("photo", "sketch") for s in (0, 1) for r in made("erm", t, s, 0.5) + made("irm", t, s, 0.6)]
    values = measurements(fill_layout(PAPER_TABLES["pacs"], Collection(runs), TableOptions(split="in")))
    assert {target: len(found) for target, found in values["ERM"].items()} == {"PACS/photo": 2, "PACS/sketch": 2}
    (one,) = (c for c in compare_rows(values, "ERM") if c.row == "IRM")
    assert (one.targets, one.pairs, one.difference) == (2, 4, pytest.approx(0.1))


def test_columns_with_other_sources_and_the_same_target_are_one_target(made: Made) -> None:
    runs = [
        r
        for source in ("photo", "cartoon")
        for name, accuracy in (("erm", 0.5), ("irm", 0.6))
        for r in made(name, "sketch", 0, accuracy, sources=(source,))
    ]
    values = measurements(fill_layout(everything_recorded(runs), Collection(runs), TableOptions(split="in")))
    (one,) = compare_rows(values, "erm")
    assert (one.targets, one.pairs, one.low) == (1, 2, None)


def test_the_table_shows_points_and_counts_targets_and_comparisons() -> None:
    better = RowComparison("better", 6, 18, 0.125, 0.1, 0.15, 2 / 64, 4 / 64)
    worse = RowComparison("worse", 6, 6, -0.1, -0.2, -0.01, 4 / 64, 4 / 64)
    table = comparison_table([better, worse], "base")
    assert table.rows == [
        ["better", "+12.5", "+10.0 … +15.0", "above", "0.0312", "0.0625", "6", "18"],
        ["worse", "-10.0", "-20.0 … -1.0", "below", "0.0625", "0.0625", "6", "6"],
    ]
    assert "sign-flip test over targets, and p after Holm's correction for 2 comparisons" in table.title
    assert len(table.notes) == 1


def test_the_table_says_that_there_are_too_few_targets() -> None:
    few = RowComparison("few", 4, 240, 0.1, -0.1, 0.3, None)
    single = RowComparison("single", 1, 60, 0.1, None, None, None)
    table = comparison_table([few, single], "base")
    assert table.rows == [
        ["few", "+10.0", "-10.0 … +30.0", "no", "too few targets", "too few targets", "4", "240"],
        ["single", "+10.0", "one target", "one target", "too few targets", "too few targets", "1", "60"],
    ]
    assert "sign-flip" not in table.title
    assert any("at least 6 targets" in note for note in table.notes)
    assert any("interval needs at least 2 targets" in note for note in table.notes)
    assert table.notes[0] == "Cannot be told from base, because the interval contains 0: few."
    many = comparison_table([few] * 20, "base")
    assert "20 intervals: about 1 of them leave out 0 by chance alone." in many.notes


def test_the_best_row_has_the_highest_mean_over_targets_and_misses_none(made: Made) -> None:
    runs = [r for t in ("photo", "sketch") for r in made("erm", t, accuracy=0.5) + made("irm", t, accuracy=0.6)]
    runs += made("mmd", "photo", accuracy=0.9)
    values = measurements(fill_layout(everything_recorded(runs), Collection(runs), TableOptions(split="in")))
    assert best_row(values) == "irm"
    with pytest.raises(InputError, match="no row has a value"):
        best_row({"erm": {}})
