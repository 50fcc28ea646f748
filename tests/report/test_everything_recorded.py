from collections.abc import Callable
from dataclasses import replace

from itta.records import Record
from itta.records.collection import Collection
from itta.report.cells import TableOptions
from itta.report.filled_layout import fill_layout
from itta.report.layouts import everything_recorded, make_layout
from itta.trial import Trial

Made = Callable[..., list[Record]]
TARGETS = ("art_painting", "cartoon", "photo", "sketch")


def test_everything_found_becomes_a_table(made: Made) -> None:
    runs = made("erm", adapted={"tent": 0.6}, settings={"lr": 0.1, "steps": 1})
    runs += made("erm", adapted={"tent": 0.7}, settings={"lr": 0.2, "steps": 1})[1:]
    runs += made("itta", "photo", hparams={"alpha": 1.0, "lr": 3.0}, overrides={"alpha": "1"})
    runs += made("itta", "photo", hparams={"alpha": 2.0, "lr": 4.0}, overrides={"alpha": "2"})
    layout = everything_recorded(runs)
    assert [r.label for r in layout.rows] == [
        "erm",
        "erm + tent (lr=0.1)",
        "erm + tent (lr=0.2)",
        "itta (alpha=1)",
        "itta (alpha=2)",
    ]
    assert [c.label for c in layout.columns] == ["photo", "sketch", "Avg."]
    cells = fill_layout(layout, Collection(runs), TableOptions(split="in")).cells
    assert cells["erm + tent (lr=0.2)"]["sketch"].mean == 0.7
    assert cells["itta (alpha=2)"]["photo"].values == {(0,): 0.5}


def test_pair_runs_serve_selection_and_make_no_columns(made: Made) -> None:
    pair = Trial("PACS", "erm", ("art_painting", "cartoon"), ("sketch", "photo"), steps=30)
    runs = [*made("erm"), Record(pair, 30, "source", {d: {"in": 0.5, "out": 0.5} for d in TARGETS})]
    assert [c.label for c in everything_recorded(runs).columns] == ["sketch"]
    other = Trial("toy", "erm", ("x",), ("y",), steps=30)
    two = [*runs, Record(other, 30, "source", {"x": {"out": 0.5}, "y": {"in": 0.5, "out": 0.5}})]
    assert [c.label for c in everything_recorded(two).columns] == ["PACS sketch", "toy y"]


def test_of_three_domains_two_targets_are_a_pair_where_a_run_with_one_more_source_is_there() -> None:
    """DomainBed's pairs leave a single source then, just as single-source runs do."""
    single = [Trial("toy", "erm", (s,), tuple(d for d in "abc" if d != s)) for s in "abc"]
    alone = [Trial("toy", "erm", tuple(d for d in "abc" if d != t), (t,)) for t in "abc"]

    def columns(trials: list[Trial]) -> list[str]:
        return [c.label for c in everything_recorded([Record(t, 1, "source", {}) for t in trials]).columns]

    assert columns(single) == ["a→b", "a→c", "b→a", "b→c", "c→a", "c→b", "Avg."]
    assert columns([*single, *alone]) == ["a", "b", "c", "Avg."]


def test_each_order_of_a_stream_has_a_row(made: Made) -> None:
    trained, adapted = made("erm", adapted={"tent": 0.6})
    clusters = replace(adapted, stream={"order": "dirichlet", "seed": 1}, accuracy={"sketch": {"in": 0.7}})
    runs = [trained, replace(adapted, stream={"order": "iid", "seed": 1}), clusters]
    layout = everything_recorded(runs)
    assert [r.label for r in layout.rows] == ["erm", "erm + tent (order=dirichlet)", "erm + tent (order=iid)"]
    cells = fill_layout(layout, Collection(runs), TableOptions(split="in")).cells
    assert [cells[r.label]["sketch"].mean for r in layout.rows] == [0.5, 0.7, 0.6]


def test_each_number_of_training_steps_has_a_row(made: Made) -> None:
    runs = made("erm") + made("irm") + made("rsc", accuracy=0.3)
    runs += made("rsc", accuracy=0.4, steps=1200, step=1200, validation=0.9, adapted={"tent": 0.6})
    layout = make_layout("found", runs)
    assert [r.label for r in layout.rows] == [
        "erm",
        "irm",
        "rsc",
        "rsc, 1,200 training steps",
        "rsc + tent, 1,200 training steps",
    ]
    cells = fill_layout(layout, Collection(runs), TableOptions(split="in")).cells
    assert [cells[r.label]["sketch"].mean for r in layout.rows] == [0.5, 0.5, 0.3, 0.4, 0.6]
    paper = make_layout("pacs", runs)
    assert [r.label for r in paper.rows if r.algorithm == "rsc"] == ["RSC", "RSC, 1,200 training steps"]


def test_data_sets_may_have_their_own_number_of_steps(made: Made) -> None:
    other = Trial("toy", "erm", ("x",), ("y",), steps=90)
    runs = [*made("erm"), Record(other, 90, "source", {"x": {"out": 0.5}, "y": {"in": 0.5}})]
    assert [r.label for r in make_layout("found", runs).rows] == ["erm"]
    runs += made("erm", steps=90, step=90, accuracy=0.9)
    layout = make_layout("found", runs)
    assert [r.label for r in layout.rows] == ["erm", "erm, 90 training steps"]
    cells = fill_layout(layout, Collection(runs), TableOptions(split="in")).cells
    assert [cells[row]["toy y"].reason for row in cells] == ["", "not run"]
    assert [cells[row]["PACS sketch"].mean for row in cells] == [0.5, 0.9]
