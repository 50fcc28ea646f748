"""One trial from end to end: trained once, adapted many times, and never twice."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest

from itta import records
from itta.cli import main
from itta.data.dataset import Split
from itta.errors import InputError
from itta.metrics.outcome import Outcome
from itta.run import job as module
from itta.run.directory import alone
from itta.run.job import Ending, adapt_model, attempt, by_split, mark_failed, perform
from itta.run.status import read_state


def files(out):
    return {
        p.name: p.read_bytes()
        for p in out.iterdir()
        if p.is_file() and p.name != "state.json" and p.suffix != ".lock" and p.name != ".lock"
    }


def test_one_record_per_adapter_on_the_selected_checkpoint(make_job, tmp_path):
    job = make_job(
        tmp_path / "run", ("source", "t3a", "itta+"), train_domains=("dawn",), test_domains=("noon", "night")
    )
    told = []
    perform(job, lambda *about: told.append(about))
    assert told == [("erm", step, 4) for step in (1, 2, 3, 4)]
    found = list(records.read(job.out / "records.jsonl"))
    assert [(r.adapter, r.step) for r in found[:2]] == [("source", 2), ("source", 4)]
    validation = {r.step: r.accuracy["dawn"]["out"] for r in found[:2]}
    chosen = max(validation, key=lambda step: (validation[step], -step))
    assert [(r.adapter, r.step) for r in found[2:]] == [("t3a", chosen), ("guarded itta+", chosen)]
    for r in found[2:]:
        assert r.trial == job.trial
        assert r.stream == {"order": "iid", "batch_size": 5, "seed": 0}
        assert {d: set(splits) for d, splits in r.accuracy.items()} == dict.fromkeys(
            ("noon", "night"), {"in", "out", "all"}
        )
        assert r.calibration.keys() == r.accuracy.keys()
        assert not r.logs  # nothing that differs from run to run
    state = read_state(job.out)
    assert state
    assert (state.word, state.step, state.attempts) == ("done", 4, 1)
    assert set(state.adapted) == set(job.adaptation.labels)


def test_one_training_from_a_single_source_fills_the_cells_of_all_its_targets(make_job, tmp_path, capsys):
    job = make_job(tmp_path / "run", train_domains=("dawn",), test_domains=("noon", "night"))
    perform(job)
    assert main(["report", str(tmp_path), "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    rows, columns = ("erm", "erm + guarded itta+", "erm + t3a"), ("dawn→noon", "dawn→night", "Avg.")
    assert {(c["row"], c["column"]): c["n"] for c in cells} == {(r, c): 1 for r in rows for c in columns}


def test_both_checkpoints_on_demand(make_job, tmp_path, monkeypatch):
    job = make_job(tmp_path / "run", ("t3a",), eval_every=1)
    job = replace(job, adaptation=replace(job.adaptation, at="both"))
    real, values = module.train_in.__globals__["record_of"], iter((0.1, 0.9, 0.2, 0.3))

    def record_of(training, *about):
        record, value = real(training, *about), next(values)
        domains = training.trial.train_domains
        return replace(record, accuracy=record.accuracy | {d: {"out": value} for d in domains})

    monkeypatch.setitem(module.train_in.__globals__, "record_of", record_of)
    perform(job)
    assert [r.step for r in records.read(job.out / "records.jsonl") if r.adapter == "t3a"] == [2, 4]


def test_accuracy_by_split_is_that_of_the_images_in_it():
    outcome = Outcome(np.array([3, 1, 0, 2]), np.array([0, 1, 1, 0]), np.array([0, 0, 1, 1]), np.full(4, 0.5))
    accuracy, errors = by_split(outcome, Split(train=np.array([0, 1, 2]), held_out=np.array([3])))
    assert accuracy == {"in": pytest.approx(1 / 3), "out": 1.0, "all": 0.5}
    assert errors == {"in": pytest.approx(1 / 6), "out": pytest.approx(0.5), "all": pytest.approx(0.0)}
    held_out, _ = by_split(outcome, Split(train=np.array([], dtype=int), held_out=np.arange(4)))
    assert held_out == {"out": 0.5, "all": 0.5}


@pytest.mark.slow
def test_adapters_go_on_where_they_stopped(make_job, tmp_path, monkeypatch):
    job, whole = make_job(tmp_path / "run"), make_job(tmp_path / "whole")
    perform(whole)
    asked: list[str] = []

    def dying(job, description, adapter, dataset, splits):
        asked.append(adapter.name)
        if len(asked) == 2:
            raise MemoryError("no room")
        adapt_model(job, description, adapter, dataset, splits)

    monkeypatch.setattr(module, "adapt_model", dying)
    assert attempt(job) == Ending("crashed", "MemoryError: no room")
    assert "in dying" in (job.out / "error.txt").read_text()
    state = read_state(job.out)
    assert state
    assert state.word == "running"
    monkeypatch.setattr(module, "train_in", lambda *args, **kwargs: pytest.fail("trained again"))
    assert attempt(job) == Ending("done")
    assert asked == ["t3a", "guarded itta+", "guarded itta+"]
    state = read_state(job.out)
    assert state
    assert (state.word, state.attempts) == ("done", 2)
    (job.out / "error.txt").unlink()
    assert files(job.out) == files(whole.out)
    (job.out / "state.json").unlink()  # a record is found again even if its state was lost
    assert attempt(job) == Ending("done")
    assert files(job.out) == files(whole.out)


def test_another_adapter_is_added_without_training(make_job, tmp_path, monkeypatch):
    job = make_job(tmp_path / "run", ("t3a",))
    perform(job)
    before = files(job.out)
    monkeypatch.setattr(module, "train_in", lambda *args, **kwargs: pytest.fail("trained again"))
    perform(replace(job, adaptation=replace(job.adaptation, adapters=("t3a", "lame"))))
    after = files(job.out)
    assert after["records.jsonl"].startswith(before.pop("records.jsonl"))
    assert {k: after[k] for k in before} == before
    assert [r.adapter for r in records.read(job.out / "records.jsonl")][-2:] == ["t3a", "lame"]


def test_an_adapter_that_does_not_fit_is_told_and_the_others_run(make_job, tmp_path):
    job = make_job(tmp_path / "run", ("tent", "t3a"))
    perform(job)
    state = read_state(job.out)
    assert state
    assert state.word == "done"
    notes = dict(zip(("tent", "t3a"), (state.adapted[label] for label in job.adaptation.labels)))
    assert "batch normalisation" in notes["tent"]
    assert isinstance(notes["t3a"], float)
    assert {r.adapter for r in records.read(job.out / "records.jsonl")} == {"source", "t3a"}


def test_a_mistake_is_written_down(make_job, tmp_path):
    job = make_job(tmp_path / "run", algorithm="irm", overrides={"colour": "red"})
    ending = attempt(job)
    assert ending.kind == "mistake"
    assert "'colour'" in ending.reason
    state = read_state(job.out)
    assert state
    assert (state.word, state.reason) == ("failed", ending.reason)


def test_a_directory_of_something_else_is_left_alone(make_job, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    ending = attempt(make_job(tmp_path))
    assert ending.kind == "mistake"
    assert "not empty" in ending.reason
    mark_failed(make_job(tmp_path), "for a test")
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_trial_in_other_hands_is_left_alone(make_job, tmp_path):
    job = make_job(tmp_path / "run")
    with alone(job.out), pytest.raises(InputError, match="another process"):
        perform(replace(job, patience=0.3))
    assert read_state(job.out) is None


def test_a_target_can_arrive_in_several_orders(make_job, tmp_path):
    job = make_job(tmp_path / "run", ("t3a",))
    job = replace(job, adaptation=replace(job.adaptation, orders=("iid", "sorted")))
    perform(job)
    first, second = (r for r in records.read(job.out / "records.jsonl") if r.adapter == "t3a")
    assert (first.stream["order"], second.stream["order"]) == ("iid", "sorted")
    assert {label: order for label, (_, order) in job.adaptation.labels.items()} == {
        "t3a at=best batch=5": "iid",
        "t3a at=best batch=5 order=sorted": "sorted",
    }
    state = read_state(job.out)
    assert state
    assert set(state.adapted) == set(job.adaptation.labels)


def test_a_sweep_refuses_orders_that_leave_out_images(photos, tmp_path, capsys):
    asked = ["sweep", str(photos), "--algorithms", "erm", "--adapters", "t3a", "--orders", "zipf2", "--dry-run"]
    assert main([*asked, "--out", str(tmp_path / "out")]) == 2
    assert "iid, sorted, dirichlet, runs" in capsys.readouterr().err
