import json
from dataclasses import replace
from pathlib import Path

import pytest

from itta import records
from itta.errors import InputError
from itta.records import Record
from itta.trial import Trial

TRIAL = Trial("emoji", "itta", ("a", "b"), ("c",), hparams_seed=1, overrides={"lr": 1e-3, "blocks": "x,y"})


def record(step: int, **changes: object) -> Record:
    accuracy = {"a": {"out": 0.5}, "c": {"in": 0.25, "out": 1 / 3, "all": 0.1}}
    made = Record(TRIAL, step, "source", accuracy, {"lr": 1e-3, "view": "noise"}, {"steps": 2}, {"loss": 0.1 + 0.2})
    return replace(made, **changes)


def write(path: Path, *steps: int) -> list[Record]:
    made = [record(step) for step in steps]
    for one in made:
        records.append(path, one)
    return made


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    made = write(path, 10, 20)
    assert list(records.read(path)) == made
    lines = path.read_text().splitlines()
    assert len(lines) == 2
    assert json.loads(lines[0])["schema"] == records.SCHEMA
    assert json.loads(lines[0])["trial"]["train_domains"] == ["a", "b"]


def test_appending_keeps_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    write(path, 10)
    first = path.read_bytes()
    write(path, 20)
    assert path.read_bytes().startswith(first)


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    made = write(path, 10, 20)
    whole = path.read_bytes()
    start_of_last = whole.index(b"\n") + 1
    for cut in (start_of_last + 1, start_of_last + 40, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert list(records.read(path)) == made[:1]


def test_going_on_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    made = write(path, 10, 20)
    path.write_bytes(path.read_bytes()[:-5])
    made[1:] = write(path, 20, 30)
    assert list(records.read(path)) == made


def test_keep_until(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    made = write(path, 10, 20, 30)
    with open(path, "a") as file:
        file.write('{"schema": 1, "torn')
    records.keep_until(path, 20)
    assert list(records.read(path)) == made[:2]
    assert path.read_text().endswith("\n")
    records.keep_until(path, 5)
    assert path.read_text() == ""
    records.keep_until(tmp_path / "none.jsonl", 5)
    assert {p.name for p in tmp_path.iterdir()} == {"records.jsonl", ".records.jsonl.lock"}


def test_trials_round_trip_and_have_stable_keys() -> None:
    again = Trial.from_json(json.loads(json.dumps(TRIAL.to_json())))
    assert again == TRIAL
    assert again.key == TRIAL.key
    assert len(TRIAL.key) == 32
    others = [
        replace(TRIAL, **change)
        for change in ({"trial_seed": 1}, {"steps": 5}, {"test_domains": ()}, {"overrides": {}}, {"strict": True})
    ]
    assert len({TRIAL.key, *[t.key for t in others]}) == 6


def test_the_seed_is_domainbeds() -> None:
    """Golden: (VLCS, ERM, [1, 2], hparams seed 1, trial seed 0) → 360234358."""
    trial = Trial("VLCS", "ERM", (), (1, 2), hparams_seed=1, trial_seed=0)
    assert trial.seed == 360234358
    assert replace(trial, steps=9, backbone="resnet18").seed == trial.seed


def test_damaged_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    made = write(path, 10, 20, 30)
    first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(
        first + second[:50] + third + b"\xff\x00\n" + b"[1]\n" + third
    )  # two run together, noise, no object
    damaged: list[int] = []
    assert list(records.read(path, damaged)) == [made[0], made[2]]
    assert damaged == [2, 3, 4]
    with pytest.warns(UserWarning, match="3 damaged lines"):
        assert len(list(records.read(path))) == 2


def test_a_newer_schema_says_so(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    write(path, 10)
    newer = record(20).to_json() | {"schema": records.SCHEMA + 1, "a_new_field": 1}
    with open(path, "a") as file:
        file.write(json.dumps(newer) + "\n")
    with pytest.raises(InputError, match=rf"records.jsonl, line 2: schema {records.SCHEMA + 1}.*update itta"):
        list(records.read(path))


def test_an_older_schema_is_read(tmp_path: Path) -> None:
    old = record(10).to_json() | {"schema": 1}
    del old["calibration"]
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps(old) + "\n")
    assert list(records.read(path)) == [record(10)]


def test_another_programs_lines_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"step": 1}\n')
    with pytest.raises(InputError, match="line 1 is not a record of this program"):
        list(records.read(path))


def test_calibration_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    made = record(10, calibration={"c": {"all": 0.25}})
    records.append(path, made)
    assert list(records.read(path)) == [made]


def test_merging_joins_what_was_measured_apart() -> None:
    trained = record(
        10, accuracy={"a": {"out": 0.5}, "c": {"in": 0.2, "all": 0.3}}, adapter_hparams={}, logs={"x": 1.0}
    )
    later = record(
        10, accuracy={"c": {"all": 0.4}}, adapter_hparams={}, logs={"y": 2.0}, calibration={"c": {"all": 0.1}}
    )
    adapted = replace(later, adapter="tent")
    other = replace(adapted, adapter_hparams={"lr": 1.0})
    merged = records.merge([trained, later, adapted, other])
    assert merged[0].accuracy == {"a": {"out": 0.5}, "c": {"in": 0.2, "all": 0.4}}
    assert merged[0].logs == {"x": 1.0, "y": 2.0}
    assert merged[0].calibration == {"c": {"all": 0.1}}
    assert merged[1:] == [adapted, other]


def test_records_of_two_devices_or_precisions_stay_apart() -> None:
    one = record(10, accuracy={"c": {"all": 0.4}})
    others = [replace(one, device="cuda (some GPU)"), replace(one, precision="bf16"), replace(one, logs={"x": 1.0})]
    assert records.merge([one, *others[:2]]) == [one, *others[:2]]
    assert records.merge([one, *others]) == [replace(one, logs={**one.logs, "x": 1.0}), *others[:2]]
