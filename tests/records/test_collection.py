import json
from collections.abc import Callable
from pathlib import Path

import pytest

from itta import records
from itta.errors import InputError
from itta.records import Record
from itta.records.collection import collect_records, in_order

Made = Callable[..., list[Record]]


def test_files_and_folders(tmp_path: Path, made: Made) -> None:
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
    gathered = collect_records([tmp_path])
    assert [r.trial.algorithm for r in gathered.records] == ["erm", "irm"]  # what tune trained is no result
    assert gathered.started == [trial]
    assert list(gathered.notes.values()) == [1]
    assert [r.trial.algorithm for r in collect_records([tmp_path], {"image_size": "96"}).records] == ["irm"]
    assert len(collect_records([tmp_path / "one" / "records.jsonl", tmp_path / "one"]).records) == 1
    with pytest.raises(InputError, match="none of 2 records agrees with --where image_size=7"):
        collect_records([tmp_path], {"image_size": "7"})
    with pytest.raises(InputError, match="a trial has no 'colour'"):
        collect_records([tmp_path], {"colour": "red"})
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no records in"):
        collect_records([tmp_path / "empty"])


def test_where_looks_into_settings(tmp_path: Path, made: Made) -> None:
    path = tmp_path / "records.jsonl"
    for lr in (1e-4, 1e-3):
        for r in made("erm", hparams={"lr": 5e-5}, adapted={"tent": 0.5}, settings={"lr": lr}):
            records.append(path, r)
    assert len(collect_records([path]).records) == 3
    kept = collect_records([path], {"adapter.lr": "0.0001"}).records
    assert [(r.adapter, r.adapter_hparams) for r in kept] == [("source", {}), ("tent", {"lr": 1e-4})]
    assert len(collect_records([path], {"hparams.lr": "5e-05"}).records) == 3


def test_the_order_of_joined_records_does_not_depend_on_the_order_of_reading(made: Made) -> None:
    found = [*made("irm", adapted={"tent": 0.5}), *made("erm")]
    joined = in_order(found)
    assert [(r.trial.algorithm, r.adapter) for r in joined] == [("erm", "source"), ("irm", "source"), ("irm", "tent")]
    assert in_order(found[::-1]) == joined
