"""DomainBed's run directories, written here by hand from what its files hold, in and out."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from itta import records
from itta.errors import InputError
from itta.records import Record
from itta.records.domainbed import read_domainbed, write_domainbed
from itta.trial import Trial

HPARAMS = {"batch_size": 32, "data_augmentation": True, "lr": 5e-05, "resnet18": True, "weight_decay": 0.0}
PACS = ("art_painting", "cartoon", "photo", "sketch")


def line(step: int, test_envs: list[int], accuracy: float, **args: Any) -> dict[str, Any]:
    """An object of results.jsonl, its accuracies made up: env i has accuracy + i/10 on in, and 0.01 more on out."""
    given = {
        "algorithm": "GroupDRO",
        "checkpoint_freq": None,
        "data_dir": "/somewhere",
        "dataset": "PACS",
        "holdout_fraction": 0.2,
        "hparams": None,
        "hparams_seed": 1,
        "output_dir": "sweep/run",
        "save_model_every_checkpoint": False,
        "seed": 7,
        "skip_model_save": False,
        "steps": None,
        "task": "domain_generalization",
        "test_envs": test_envs,
        "trial_seed": 2,
        "uda_holdout_fraction": 0,
    }
    accuracies = {}
    for i in range(4):
        accuracies |= {f"env{i}_in_acc": accuracy + i / 10, f"env{i}_out_acc": accuracy + i / 10 + 0.01}
    more = {"epoch": 1.5, "loss": 0.5, "mem_gb": 3.0, "step_time": 0.25, "step": step, "hparams": HPARAMS}
    return {"args": given | args, **accuracies, **more}


def write_run(folder: Path, lines: list[dict[str, Any]], done: bool = True) -> None:
    folder.mkdir(parents=True)
    (folder / "results.jsonl").write_text("".join(json.dumps(one, sort_keys=True) + "\n" for one in lines))
    if done:
        (folder / "done").write_text("done")


def test_a_sweep_is_read_with_names_for_numbers(tmp_path: Path) -> None:
    write_run(tmp_path / "0a", [line(0, [3], 0.1), line(300, [3], 0.2)])
    write_run(tmp_path / "0b", [line(300, [0, 2], 0.3, hparams='{"lr": 0.1}', steps=1001)], done=False)
    (tmp_path / "not-a-run").mkdir()
    told: Counter[str] = Counter()
    first, second, pair = read_domainbed(tmp_path, told)
    assert told == {"runs without a file done: unfinished, or failed": 1}
    assert first.trial == second.trial
    settings = {"steps": 5001, "backbone": "resnet18", "weights": "imagenet", "image_size": 224}
    assert second.trial == Trial("PACS", "groupdro", PACS[:3], ("sketch",), 1, 2, **settings)
    assert (second.step, second.adapter, second.hparams) == (300, "source", HPARAMS)
    assert second.accuracy["sketch"] == {"in": 0.2 + 3 / 10, "out": 0.2 + 3 / 10 + 0.01}
    assert list(second.accuracy) == list(PACS)
    assert second.logs == {"epoch": 1.5, "loss": 0.5, "mem_gb": 3.0, "step_time": 0.25}
    assert (pair.trial.train_domains, pair.trial.test_domains) == (("cartoon", "sketch"), ("art_painting", "photo"))
    assert (pair.trial.overrides, pair.trial.steps) == ({"lr": 0.1}, 1001)


def test_a_single_run_and_an_unknown_data_set(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [line(0, [1], 0.1, dataset="WILDSCamelyon")])
    (one,) = read_domainbed(tmp_path / "run", Counter())
    assert one.trial.test_domains == ("env1",)
    assert one.trial.train_domains == ("env0", "env2", "env3")


def test_small_images_have_their_own_network(tmp_path: Path) -> None:
    six = {f"env{i}_{s}_acc": 0.5 for i in range(6) for s in ("in", "out", "uda")}
    write_run(tmp_path / "run", [line(0, [5], 0.1, dataset="RotatedMNIST") | six])
    (one,) = read_domainbed(tmp_path, Counter())
    assert (one.trial.image_size, one.trial.backbone, one.trial.test_domains) == (28, "mnist_cnn", ("75",))
    assert one.accuracy["75"] == {"in": 0.5, "out": 0.5, "uda": 0.5}


def test_damaged_lines_are_counted_and_foreign_ones_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [line(0, [1], 0.1)])
    with open(tmp_path / "run" / "results.jsonl", "a") as file:
        file.write('{"args": {"algo\n')
    told: Counter[str] = Counter()
    assert len(list(read_domainbed(tmp_path, told))) == 1
    assert told == {"damaged lines, skipped": 1}
    with open(tmp_path / "run" / "results.jsonl", "a") as file:
        file.write('{"args": {}, "hparams": {}}\n')
    with pytest.raises(InputError, match="line 3 is not a result of DomainBed"):
        list(read_domainbed(tmp_path, Counter()))
    with pytest.raises(InputError, match="holds no runs"):
        list(read_domainbed(tmp_path / "run" / "nothing", Counter()))


def source(step: int, trial: Trial, **changes: Any) -> Record:
    accuracy = {d: {"out": 0.5 + step / 1000} for d in trial.train_domains}
    accuracy |= {d: {"in": 0.3, "out": 0.4, "all": 0.35} for d in trial.test_domains}
    return replace(Record(trial, step, "source", accuracy, {"lr": 1e-3}, {}, {"loss": 0.5}), **changes)


TRIAL = Trial("data/PACS", "groupdro", ("cartoon", "art_painting", "sketch"), ("photo",), 1, 2, steps=20)


def read_run(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (folder / "results.jsonl").read_text().splitlines()]


def test_what_is_written_is_what_domainbed_writes(tmp_path: Path) -> None:
    made = [source(20, TRIAL), source(10, TRIAL)]
    told: Counter[str] = Counter()
    assert write_domainbed(tmp_path / "sweep", made, told) == 1
    assert not told
    (run,) = (tmp_path / "sweep").iterdir()
    assert len(run.name) == 32
    assert (run / "done").read_text() == "done"
    first, last = read_run(run)
    assert (first["step"], last["step"]) == (10, 20)
    assert last["args"] == {
        "dataset": "PACS",
        "algorithm": "GroupDRO",
        "test_envs": [2],
        "holdout_fraction": 0.2,
        "hparams_seed": 1,
        "data_dir": "",
        "task": "domain_generalization",
        "trial_seed": 2,
        "seed": Trial("PACS", "GroupDRO", (), (2,), 1, 2).seed,  # type: ignore[arg-type]
        "steps": 20,
    }
    found = {k: v for k, v in last.items() if k.startswith("env")}
    held_out = {f"env{i}_out_acc": 0.52 for i in (0, 1, 3)}
    assert found == {**held_out, "env2_in_acc": 0.3, "env2_out_acc": 0.4}
    assert (last["hparams"], last["loss"]) == ({"lr": 1e-3}, 0.5)


def test_there_and_back_loses_nothing(tmp_path: Path) -> None:
    pair = replace(TRIAL, train_domains=("cartoon", "sketch"), test_domains=("photo", "art_painting"))
    plain = [source(10, TRIAL), source(20, TRIAL), source(10, pair), source(10, replace(TRIAL, overrides={"lr": "1"}))]
    target = {"photo": {"in": 0.6, "out": 0.7, "all": 0.65}}
    tent = Record(TRIAL, 20, "tent", target, {"lr": 1e-3}, {"steps": 1}, calibration={"photo": {"all": 0.1}})
    made = [*plain, tent, replace(tent, adapter_hparams={"steps": 2}, accuracy={"photo": {"in": 0.1, "out": 0.2}})]
    told: Counter[str] = Counter()
    assert write_domainbed(tmp_path / "sweep", made, told) == 5
    assert not told
    back = list(read_domainbed(tmp_path / "sweep", told))

    def key(r: Record) -> str:
        return json.dumps(r.to_json(), sort_keys=True)

    assert sorted(map(key, back)) == sorted(map(key, made))
    assert told == {"runs without a file done: unfinished, or failed": 2}  # those that stopped at step 10


def test_an_adapted_model_is_a_run_of_its_own(tmp_path: Path) -> None:
    tent = Record(TRIAL, 20, "tent", {"photo": {"in": 0.6, "out": 0.7}}, {}, {"lr": 1.0, "steps": 1})
    made = [source(20, TRIAL), tent, replace(tent, adapter_hparams={"lr": 1.0, "steps": 2})]
    write_domainbed(tmp_path / "sweep", made, Counter())
    runs = {r["args"]["algorithm"]: r for run in (tmp_path / "sweep").iterdir() for r in read_run(run)}
    assert runs.keys() == {"GroupDRO", "GroupDRO+tent steps=1", "GroupDRO+tent steps=2"}
    adapted, plain = runs["GroupDRO+tent steps=1"], runs["GroupDRO"]
    assert (adapted["env2_in_acc"], plain["env2_in_acc"]) == (0.6, 0.3)
    assert adapted["env0_out_acc"] == plain["env0_out_acc"]  # validation is of the model before adaptation


def last_line_of_each_run(folder: Path) -> dict[str, dict[str, Any]]:
    """As DomainBed's oracle selection takes it: folders directly in the one named, and the last step of each."""
    runs = [read_run(p.parent) for p in folder.glob("*/results.jsonl")]
    return {r[0]["args"]["algorithm"]: max(r, key=lambda one: one["step"]) for r in runs}


def test_a_run_adapted_at_the_best_step_is_not_counted_as_its_last(tmp_path: Path) -> None:
    plain = [source(10, TRIAL), source(20, TRIAL)]
    tent = Record(TRIAL, 10, "tent", {"photo": {"in": 0.6, "out": 0.7}})
    both = [Record(TRIAL, step, "t3a", {"photo": {"in": step / 100, "out": 0.7}}) for step in (20, 10)]
    notes: Counter[str] = Counter()
    assert write_domainbed(tmp_path / "sweep", [*plain, tent, *both], notes) == 3
    ((note, n),) = notes.items()
    assert n == 1
    assert "in the folder best-step" in note
    assert "oracle selection would count that step as the last" in note
    last = last_line_of_each_run(tmp_path / "sweep")
    assert {name: one["step"] for name, one in last.items()} == {"GroupDRO": 20, "GroupDRO+t3a": 20}
    assert last["GroupDRO+t3a"]["env2_in_acc"] == 0.2
    apart = last_line_of_each_run(tmp_path / "sweep" / "best-step")
    assert {name: one["step"] for name, one in apart.items()} == {"GroupDRO+tent": 10}
    imported: Counter[str] = Counter()
    assert sorted((r.adapter, r.step) for r in read_domainbed(tmp_path / "sweep", imported)) == [
        ("source", 10), ("source", 20), ("t3a", 10), ("t3a", 20), ("tent", 10),
    ]  # fmt: skip
    assert not imported  # the training has ended: the runs are done


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (
            [source(20, TRIAL), Record(TRIAL, 20, "tent", {"photo": {"all": 0.6}})],
            "'tent' was not measured on the split",
        ),
        ([source(20, TRIAL), Record(TRIAL, 10, "tent", {"photo": {"in": 0.6, "out": 0.6}})], "no record of the model"),
        (
            [source(20, TRIAL), source(20, replace(TRIAL, train_domains=("sketch",)))],
            "does not cover the domains of PACS",
        ),
        (
            [source(20, TRIAL), source(10, TRIAL, accuracy={"photo": {"in": 0.1, "out": 0.1}})],
            "held-out images of every",
        ),
    ],
)
def test_what_has_no_place_is_told(tmp_path: Path, made: list[Record], why: str) -> None:
    told: Counter[str] = Counter()
    assert write_domainbed(tmp_path / "sweep", made, told) == 1
    ((note, n),) = told.items()
    assert note.startswith("records left out: ")
    assert why in note
    assert n == 1
    assert list(read_domainbed(tmp_path / "sweep", Counter())) == made[:1]


def test_an_unknown_data_set_is_written_and_told(tmp_path: Path) -> None:
    trial = Trial("photos/sites", "erm", ("b", "c"), ("a",), steps=20)
    told: Counter[str] = Counter()
    write_domainbed(tmp_path / "sweep", [source(20, trial)], told)
    assert told == {"records of 'sites': DomainBed's tables will not show this data set": 1}
    (run,) = (tmp_path / "sweep").iterdir()
    assert read_run(run)[0]["args"]["test_envs"] == [0]
    assert list(read_domainbed(tmp_path / "sweep", Counter())) == [source(20, trial)]


def test_runs_that_domainbed_cannot_tell_apart_are_kept_and_told(tmp_path: Path) -> None:
    made = [source(20, replace(TRIAL, image_size=size)) for size in (32, 64, 96)]
    told: Counter[str] = Counter()
    assert write_domainbed(tmp_path / "sweep", made, told) == 3
    assert list(told.values()) == [2]
    assert {r.trial.image_size for r in read_domainbed(tmp_path / "sweep", Counter())} == {32, 64, 96}


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(InputError, match="not an empty folder"):
        write_domainbed(tmp_path, [source(20, TRIAL)], Counter())
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


def test_records_measured_apart_are_one_line(tmp_path: Path) -> None:
    """What training recorded, and what `itta adapt` recorded of the same model later."""
    later = source(20, TRIAL, accuracy={"photo": {"all": 0.36}}, logs={"seconds_per_image": 0.1})
    write_domainbed(tmp_path / "sweep", [source(20, TRIAL), later], Counter())
    (back,) = read_domainbed(tmp_path / "sweep", Counter())
    assert back == records.merge([source(20, TRIAL), later])[0]
    assert back.accuracy["photo"] == {"in": 0.3, "out": 0.4, "all": 0.36}
