"""Cells of a table: what stands in them, and what they say when nothing does."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from itta.records import Record, merge
from itta.records.collection import Collection, matches
from itta.report.cells import TableOptions
from itta.report.filled_layout import FilledLayout, fill_layout
from itta.report.layouts import PAPER_TABLES, Layout, Row
from itta.trial import Trial

Made = Callable[..., list[Record]]
TARGETS = ("art_painting", "cartoon", "photo", "sketch")


def filled(table: str, made: list[Record], **options: object) -> FilledLayout:
    return fill_layout(PAPER_TABLES[table], Collection(made), TableOptions(**({"split": "in"} | options)))  # type: ignore[arg-type]


def test_a_cell_is_the_mean_over_trial_seeds_with_domainbeds_error(made: Made) -> None:
    runs = [r for seed, a in enumerate((0.1, 0.2, 0.3)) for r in made("erm", seed=seed, accuracy=a)]
    cell = filled("pacs", runs).cells["ERM"]["Sketch"]
    assert (round(100 * cell.mean, 1), round(100 * cell.error, 1)) == (20.0, 4.7)
    assert cell.values == {(0,): 0.1, (1,): 0.2, (2,): 0.3}


def test_seeds_or_all_trials(made: Made) -> None:
    runs = [
        r
        for seed in (0, 1)
        for h, (validation, accuracy) in enumerate([(0.5, 0.4), (0.9, 0.6)])
        for r in made("erm", seed=seed, hparams_seed=h, validation=validation, accuracy=accuracy + seed / 10)
    ]
    assert filled("pacs", runs).cells["ERM"]["Sketch"].values == {(0,): 0.6, (1,): 0.7}
    every = filled("pacs", runs, over="trials").cells["ERM"]["Sketch"]
    assert every.values == {(0, 0): 0.4, (0, 1): 0.6, (1, 0): 0.5, (1, 1): 0.7}


def test_an_adapter_is_judged_on_the_checkpoint_chosen_for_its_model(made: Made) -> None:
    early = made("itta", step=10, validation=0.9, accuracy=0.4, adapted={"itta": 0.45})
    late = made("itta", step=30, validation=0.7, accuracy=0.8, adapted={"itta": 0.95})
    table = filled("ablation", early + late)
    assert table.cells["Ours"]["Sketch"].mean == 0.45
    assert table.cells["Ours w/o TTT"]["Sketch"].mean == 0.4


def test_an_adapter_not_run_there_is_told_with_the_cure(made: Made) -> None:
    runs = [*made("itta", step=10, validation=0.9), *made("itta", step=30, validation=0.7, adapted={"itta": 0.6})]
    table = filled("ablation", runs)
    assert table.cells["Ours"]["Sketch"].reason == "not adapted"
    note = next(n for n in table.notes if n.startswith("Ours, Sketch"))
    assert "itta was not run at step 10, which was selected, but at 30: --last-only?" in note
    assert filled("ablation", runs, last_only=True).cells["Ours"]["Sketch"].mean == 0.6


def test_selection_never_looks_at_an_adapters_accuracy(made: Made) -> None:
    """Two runs of the search; the adapter does wonders for the one that validates worse."""
    runs = made("itta", hparams_seed=0, validation=0.9, accuracy=0.5, adapted={"itta": 0.1})
    runs += made("itta", hparams_seed=1, validation=0.8, accuracy=0.6, adapted={"itta": 0.99})
    assert filled("ablation", runs).cells["Ours"]["Sketch"].mean == 0.1


def test_rows_are_told_apart_by_settings(made: Made) -> None:
    runs = [
        r
        for a in (0.1, 1.0, 10.0)
        for r in made("itta", hparams={"alpha": a}, adapted={"itta": a / 100}, image_size=int(a * 10))
    ]
    cells = filled("alpha", runs).cells
    assert [cells[row]["Sketch"].values.get((0,)) for row in cells] == [0.001, 0.01, 0.1, None]
    assert cells["α = 100"]["Sketch"].reason == "not run"


def test_lists_and_tuples_of_blocks_are_the_same(made: Made) -> None:
    runs = made(
        "itta", adapted={"itta": 0.7}, settings=json.loads('{"blocks": ["layer2"], "scope": "blocks", "depth": 5}')
    )
    runs = [r if r.adapter == "source" else replace(r, adapter_hparams={**DEFAULTS, **r.adapter_hparams}) for r in runs]
    cells = filled("locations", runs).cells
    assert cells["after block 2"]["Sketch"].mean == 0.7
    assert cells["after block 1"]["Sketch"].reason == "not adapted"


DEFAULTS = {"objective": "learned", "steps": 1, "episodic": False, "blocks": [], "per": "pixel"}


def test_an_adapter_run_with_several_settings_is_not_chosen_from(made: Made) -> None:
    runs = made("erm", adapted={"tent": 0.6}, settings={"lr": 0.1})
    runs += made("erm", adapted={"tent": 0.7}, settings={"lr": 0.2})[1:]
    layout = Layout("", (Row("ERM + Tent", "erm", "tent"),), PAPER_TABLES["pacs"].columns)
    table = fill_layout(layout, Collection(runs), TableOptions(split="in"))
    assert table.cells["ERM + Tent"]["Sketch"].reason == "several settings"
    assert any("lr = 0.1, 0.2; choose one with --where adapter" in n for n in table.notes)
    one = Collection([r for r in runs if r.adapter_hparams != {"lr": 0.2}])
    assert fill_layout(layout, one, TableOptions(split="in")).cells["ERM + Tent"]["Sketch"].mean == 0.6


def test_an_adapter_run_on_several_streams_is_not_chosen_from(made: Made) -> None:
    trained, first = made("erm", adapted={"tent": 0.6})
    runs = [trained, *(replace(first, stream={"order": order, "seed": 0}) for order in ("iid", "sorted"))]
    layout = Layout("", (Row("ERM + Tent", "erm", "tent"),), PAPER_TABLES["pacs"].columns)
    table = fill_layout(layout, Collection(runs), TableOptions(split="in"))
    assert any("stream.order = iid, sorted; choose one with --where adapter.…, stream.…" in n for n in table.notes)
    assert [matches(r, {"stream.order": "sorted"}) for r in runs] == [
        True,
        False,
        True,
    ]  # the first as trained


def test_an_adapter_run_on_two_devices_is_not_chosen_from(made: Made) -> None:
    trained, first = made("erm", adapted={"tent": 0.6})
    runs = [trained, first, replace(first, device="cuda (some GPU)")]
    layout = Layout("", (Row("ERM + Tent", "erm", "tent"),), PAPER_TABLES["pacs"].columns)
    table = fill_layout(layout, Collection(merge(runs)), TableOptions(split="in"))
    assert any("measured.device = cpu, cuda (some GPU); choose one" in n for n in table.notes)
    assert [matches(r, {"measured.device": "cpu"}) for r in runs] == [True, True, False]


def test_missing_cells_say_why(made: Made) -> None:
    started = made("irm")[0].trial
    gathered = Collection(made("erm") + made("mmd", adapted={"tent": 0.1})[1:], started=[started])
    cells = fill_layout(PAPER_TABLES["pacs"], gathered, TableOptions(split="in")).cells
    assert cells["IRM"]["Sketch"].reason == "failed or running"
    assert cells["SD"]["Sketch"].reason == "not run"
    assert cells["ERM"]["Avg."].reason == "3 of 4 missing"
    assert cells["SD"]["Avg."].reason == "not run"
    assert cells["MMD"]["Sketch"].reason == "no validation"  # an adapter's record alone
    loo = fill_layout(PAPER_TABLES["pacs"], gathered, TableOptions("leave-one-domain-out", split="in"))
    assert loo.cells["ERM"]["Sketch"].reason == "no pair runs"
    assert any("leave out each source domain" in n for n in loo.notes)


def test_an_adapters_record_without_its_training_has_no_validation(made: Made) -> None:
    table = filled("ablation", made("itta", adapted={"itta": 0.5})[1:])
    assert table.cells["Ours"]["Sketch"].reason == "no validation"


def test_single_source_runs_have_their_own_columns(made: Made) -> None:
    what = Trial("PACS", "erm", ("photo",), ("art_painting", "cartoon", "sketch"), steps=30)
    accuracy = {"photo": {"out": 0.9}} | {d: {"in": 0.1 * i} for i, d in enumerate(what.test_domains, 1)}
    table = filled("single-source", [Record(what, 30, "source", accuracy)])
    cells = table.cells["ERM"]
    assert [cells[c].values.get((0,)) for c in ("P→A", "P→C", "P→S", "A→P")] == [0.1, 0.2, pytest.approx(0.3), None]
    assert all(
        c.reason == "not run" for c in filled("pacs", [Record(what, 30, "source", accuracy)]).cells["ERM"].values()
    )


def test_the_split_is_domainbeds_only_where_all_have_it(made: Made) -> None:
    runs = made("erm", accuracy=0.5)
    assert filled("pacs", runs, split="auto").split == "in"
    runs.append(replace(runs[0], adapter="tent", accuracy={"sketch": {"all": 0.4}}))
    table = filled("pacs", runs, split="auto")
    assert table.split == "all"
    assert table.cells["ERM"]["Sketch"].mean == 0.502
    layout = Layout("", (Row("Tent", "erm", "tent"),), PAPER_TABLES["pacs"].columns)
    asked = fill_layout(layout, Collection(runs), TableOptions(split="in"))
    assert asked.cells["Tent"]["Sketch"].reason == "no accuracy on split in"
    assert any("measured on all" in n for n in asked.notes)
