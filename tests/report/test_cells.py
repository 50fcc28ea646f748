"""Cells of a table: what stands in them, and what they say when nothing does."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from itta import records
from itta.errors import InputError
from itta.records import Record
from itta.records.collection import Gathered, gather
from itta.report.cells import Cell, Filled, Options, fill, summarise
from itta.report.layouts import TABLES, Average, Column, Layout, Row, found
from itta.trial import Trial

Made = Callable[..., list[Record]]
TARGETS = ("art_painting", "cartoon", "photo", "sketch")


def filled(table: str, made: list[Record], **options: object) -> Filled:
    return fill(TABLES[table], Gathered(made), Options(**({"split": "in"} | options)))  # type: ignore[arg-type]


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
    layout = Layout("", (Row("ERM + Tent", "erm", "tent"),), TABLES["pacs"].columns)
    table = fill(layout, Gathered(runs), Options(split="in"))
    assert table.cells["ERM + Tent"]["Sketch"].reason == "several settings"
    assert any("lr = 0.1, 0.2; say which with --where adapter" in n for n in table.notes)
    one = Gathered([r for r in runs if r.adapter_hparams != {"lr": 0.2}])
    assert fill(layout, one, Options(split="in")).cells["ERM + Tent"]["Sketch"].mean == 0.6


def test_missing_cells_say_why(made: Made) -> None:
    started = made("irm")[0].trial
    gathered = Gathered(made("erm") + made("mmd", adapted={"tent": 0.1})[1:], started=[started])
    cells = fill(TABLES["pacs"], gathered, Options(split="in")).cells
    assert cells["IRM"]["Sketch"].reason == "failed or running"
    assert cells["SD"]["Sketch"].reason == "not run"
    assert cells["ERM"]["Avg."].reason == "3 of 4 missing"
    assert cells["SD"]["Avg."].reason == "not run"
    assert cells["MMD"]["Sketch"].reason == "no validation"  # an adapter's record alone
    loo = fill(TABLES["pacs"], gathered, Options("leave-one-domain-out", split="in"))
    assert loo.cells["ERM"]["Sketch"].reason == "no pair runs"
    assert any("leave out each source domain" in n for n in loo.notes)


def test_an_adapters_record_without_its_training_has_no_validation(made: Made) -> None:
    table = filled("ablation", made("itta", adapted={"itta": 0.5})[1:])
    assert table.cells["Ours"]["Sketch"].reason == "no validation"


def test_an_average_is_taken_trial_by_trial(made: Made) -> None:
    runs = [r for t in TARGETS for s in (0, 1) for r in made("erm", t, s, 0.5 + s / 10 + TARGETS.index(t) / 100)]
    cell = filled("pacs", runs).cells["ERM"]["Avg."]
    assert cell.values == pytest.approx({(0,): 0.515, (1,): 0.615})
    without = [r for r in runs if (r.trial.test_domains, r.trial.trial_seed) != (("photo",), 1)]
    assert filled("pacs", without).cells["ERM"]["Avg."].values == pytest.approx({(0,): 0.515})


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
    layout = Layout("", (Row("Tent", "erm", "tent"),), TABLES["pacs"].columns)
    asked = fill(layout, Gathered(runs), Options(split="in"))
    assert asked.cells["Tent"]["Sketch"].reason == "no accuracy on split in"
    assert any("measured on all" in n for n in asked.notes)


def test_runs_that_should_not_be_mixed_are_told(made: Made) -> None:
    table = filled("pacs", made("erm", steps=30) + made("irm", steps=50, step=50))
    assert "the runs differ in steps: 30, 50; --where steps=… keeps one" in table.notes
    assert not any("differ" in n for n in filled("pacs", made("erm") + made("irm")).notes)


def test_runs_cut_short_are_told(made: Made) -> None:
    note = "1 runs stopped before their last step, and count as they are"
    assert note in filled("pacs", made("erm", step=10) + made("irm")).notes
    assert filled("pacs", made("erm", step=29)).notes == []  # DomainBed counts from 0


def test_top5_and_score(made: Made) -> None:
    """Six made-up methods on one column; ERM 50 ± 1."""
    column = TABLES["pacs"].columns[3]
    assert isinstance(column, Column)
    values = {"ERM": 0.50, "a": 0.53, "b": 0.519, "c": 0.6, "d": 0.7, "e": 0.8}
    rows = tuple(Row(name, name.lower()) for name in values)
    layout = Layout("", rows, (Average("PACS", (column,)),), ("Avg.", "Top5", "Score"))
    spread = 0.01 * 2**0.5  # of two seeds: an error of 0.01
    runs = [
        r for n, v in values.items() for s in (0, 1) for r in made(n.lower(), seed=s, accuracy=v + (2 * s - 1) * spread)
    ]
    summary = summarise(fill(layout, Gathered(runs), Options(split="in")))
    assert {n: s["Score"] for n, s in summary.items()} == {"ERM": None, "a": 1, "b": 0, "c": 1, "d": 1, "e": 1}
    assert {n: s["Top5"] for n, s in summary.items()} == {"ERM": 0, "a": 1, "b": 1, "c": 1, "d": 1, "e": 1}
    assert summary["a"]["Avg."] == pytest.approx(0.53)


def test_calibration_stands_beside_accuracy(made: Made) -> None:
    runs = [
        replace(r, calibration={"sketch": {"in": 0.1 + r.trial.trial_seed / 10}})
        for s in (0, 1)
        for r in made("erm", seed=s)
    ]
    layout = Layout("", (Row("ERM", "erm"), Row("IRM", "irm")), TABLES["pacs"].columns[3:4])
    table = fill(layout, Gathered(runs), Options(split="in"), calibration=True)
    assert table.calibration["ERM"].values == pytest.approx({(0,): 0.1, (1,): 0.2})
    assert table.calibration["IRM"] == Cell(reason="not run")
    without = fill(layout, Gathered(made("erm")), Options(split="in"), calibration=True)
    assert without.calibration["ERM"].reason == "not recorded"


def test_everything_found_becomes_a_table(made: Made) -> None:
    runs = made("erm", adapted={"tent": 0.6}, settings={"lr": 0.1, "steps": 1})
    runs += made("erm", adapted={"tent": 0.7}, settings={"lr": 0.2, "steps": 1})[1:]
    runs += made("itta", "photo", hparams={"alpha": 1.0, "lr": 3.0}, overrides={"alpha": "1"})
    runs += made("itta", "photo", hparams={"alpha": 2.0, "lr": 4.0}, overrides={"alpha": "2"})
    layout = found(runs)
    assert [r.label for r in layout.rows] == [
        "erm",
        "erm + tent (lr=0.1)",
        "erm + tent (lr=0.2)",
        "itta (alpha=1)",
        "itta (alpha=2)",
    ]
    assert [c.label for c in layout.columns] == ["photo", "sketch", "Avg."]
    cells = fill(layout, Gathered(runs), Options(split="in")).cells
    assert cells["erm + tent (lr=0.2)"]["sketch"].mean == 0.7
    assert cells["itta (alpha=2)"]["photo"].values == {(0,): 0.5}


def test_pair_runs_serve_selection_and_make_no_columns(made: Made) -> None:
    pair = Trial("PACS", "erm", ("art_painting", "cartoon"), ("sketch", "photo"), steps=30)
    runs = [*made("erm"), Record(pair, 30, "source", {d: {"in": 0.5, "out": 0.5} for d in TARGETS})]
    assert [c.label for c in found(runs).columns] == ["sketch"]
    other = Trial("toy", "erm", ("x",), ("y",), steps=30)
    two = [*runs, Record(other, 30, "source", {"x": {"out": 0.5}, "y": {"in": 0.5, "out": 0.5}})]
    assert [c.label for c in found(two).columns] == ["PACS sketch", "toy y"]


def test_gathering(tmp_path: Path, made: Made) -> None:
    runs = {"one": made("erm"), "two": made("irm", image_size=96), "model/tune/photo": made("sd")}
    for name, found_there in runs.items():
        (tmp_path / name).mkdir(parents=True)
        for r in found_there:
            records.append(tmp_path / name / "records.jsonl", r)
    trial = made("mmd")[0].trial
    (tmp_path / "three").mkdir()
    (tmp_path / "three" / "trial.json").write_text(json.dumps(trial.to_json()))
    (tmp_path / "one" / "trial.json").write_text(json.dumps(made("erm")[0].trial.to_json()))
    with open(tmp_path / "one" / "records.jsonl", "a") as file:
        file.write("noise\n")
    gathered = gather([tmp_path])
    assert [r.trial.algorithm for r in gathered.records] == ["erm", "irm"]  # what tune trained is no result
    assert gathered.started == [trial]
    assert list(gathered.notes.values()) == [1]
    assert [r.trial.algorithm for r in gather([tmp_path], {"image_size": "96"}).records] == ["irm"]
    assert len(gather([tmp_path / "one" / "records.jsonl", tmp_path / "one"]).records) == 1
    with pytest.raises(InputError, match="none of 2 records agrees with --where image_size=7"):
        gather([tmp_path], {"image_size": "7"})
    with pytest.raises(InputError, match="a trial has no 'colour'"):
        gather([tmp_path], {"colour": "red"})
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no records in"):
        gather([tmp_path / "empty"])


def test_where_looks_into_settings(tmp_path: Path, made: Made) -> None:
    path = tmp_path / "records.jsonl"
    for lr in (1e-4, 1e-3):
        for r in made("erm", hparams={"lr": 5e-5}, adapted={"tent": 0.5}, settings={"lr": lr}):
            records.append(path, r)
    assert len(gather([path]).records) == 3
    kept = gather([path], {"adapter.lr": "0.0001"}).records
    assert [(r.adapter, r.adapter_hparams) for r in kept] == [("source", {}), ("tent", {"lr": 1e-4})]
    assert len(gather([path], {"hparams.lr": "5e-05"}).records) == 3


def test_of_three_domains_two_targets_are_a_pair_where_a_run_with_one_more_source_is_there() -> None:
    """DomainBed's pairs leave a single source then, just as single-source runs do."""
    single = [Trial("toy", "erm", (s,), tuple(d for d in "abc" if d != s)) for s in "abc"]
    alone = [Trial("toy", "erm", tuple(d for d in "abc" if d != t), (t,)) for t in "abc"]

    def columns(trials: list[Trial]) -> list[str]:
        return [c.label for c in found([Record(t, 1, "source", {}) for t in trials]).columns]

    assert columns(single) == ["a→b", "a→c", "b→a", "b→c", "c→a", "c→b", "Avg."]
    assert columns([*single, *alone]) == ["a", "b", "c", "Avg."]
