from collections.abc import Callable
from dataclasses import replace

import pytest

from itta.records import Record
from itta.records.collection import Collection
from itta.report.cells import Cell, TableOptions
from itta.report.filled_layout import FilledLayout, fill_layout, row_summaries
from itta.report.layouts import PAPER_TABLES, Average, Column, Layout, Row

Made = Callable[..., list[Record]]
TARGETS = ("art_painting", "cartoon", "photo", "sketch")


def filled(table: str, made: list[Record], **options: object) -> FilledLayout:
    return fill_layout(PAPER_TABLES[table], Collection(made), TableOptions(**({"split": "in"} | options)))  # type: ignore[arg-type]


def test_an_average_is_taken_trial_by_trial(made: Made) -> None:
    runs = [r for t in TARGETS for s in (0, 1) for r in made("erm", t, s, 0.5 + s / 10 + TARGETS.index(t) / 100)]
    cell = filled("pacs", runs).cells["ERM"]["Avg."]
    assert cell.values == pytest.approx({(0,): 0.515, (1,): 0.615})
    without = [r for r in runs if (r.trial.test_domains, r.trial.trial_seed) != (("photo",), 1)]
    assert filled("pacs", without).cells["ERM"]["Avg."].values == pytest.approx({(0,): 0.515})


def test_runs_that_should_not_be_mixed_are_told(made: Made) -> None:
    table = filled("pacs", made("erm", steps=30) + made("irm", steps=50, step=50))
    assert "the runs differ in steps: 30, 50; --where steps=… keeps one" in table.notes
    assert not any("differ" in n for n in filled("pacs", made("erm") + made("irm")).notes)


def test_runs_cut_short_are_told(made: Made) -> None:
    note = "1 of the runs stopped before their last step; they count as they are"
    assert note in filled("pacs", made("erm", step=10) + made("irm")).notes
    assert filled("pacs", made("erm", step=29)).notes == []  # DomainBed counts from 0


def test_top5_and_score(made: Made) -> None:
    """Six made-up methods on one column; ERM 50 ± 1."""
    column = PAPER_TABLES["pacs"].columns[3]
    assert isinstance(column, Column)
    values = {"ERM": 0.50, "a": 0.53, "b": 0.519, "c": 0.6, "d": 0.7, "e": 0.8}
    rows = tuple(Row(name, name.lower()) for name in values)
    layout = Layout("", rows, (Average("PACS", (column,)),), ("Avg.", "Top5", "Score"))
    spread = 0.01 * 2**0.5  # of two seeds: an error of 0.01
    runs = [
        r for n, v in values.items() for s in (0, 1) for r in made(n.lower(), seed=s, accuracy=v + (2 * s - 1) * spread)
    ]
    summary = row_summaries(fill_layout(layout, Collection(runs), TableOptions(split="in")))
    assert {n: s["Score"] for n, s in summary.items()} == {"ERM": None, "a": 1, "b": 0, "c": 1, "d": 1, "e": 1}
    assert {n: s["Top5"] for n, s in summary.items()} == {"ERM": 0, "a": 1, "b": 1, "c": 1, "d": 1, "e": 1}
    assert summary["a"]["Avg."] == pytest.approx(0.53)


def test_calibration_stands_beside_accuracy(made: Made) -> None:
    runs = [
        replace(r, calibration={"sketch": {"in": 0.1 + r.trial.trial_seed / 10}})
        for s in (0, 1)
        for r in made("erm", seed=s)
    ]
    layout = Layout("", (Row("ERM", "erm"), Row("IRM", "irm")), PAPER_TABLES["pacs"].columns[3:4])
    table = fill_layout(layout, Collection(runs), TableOptions(split="in"), calibration=True)
    assert table.calibration["ERM"].values == pytest.approx({(0,): 0.1, (1,): 0.2})
    assert table.calibration["IRM"] == Cell(reason="not run")
    without = fill_layout(layout, Collection(made("erm")), TableOptions(split="in"), calibration=True)
    assert without.calibration["ERM"].reason == "not recorded"
