import multiprocessing
import os
import shutil
import signal
import sys
from dataclasses import replace

import pytest

from itta.errors import InputError
from itta.run.job import Ending, perform
from itta.run.status import read_state
from itta.sweep.engines import ENGINES, EngineOptions, run_jobs, run_local
from itta.sweep.engines.slurm import Attempt
from itta.trial import Trial

STEPS = 8


@pytest.fixture
def jobs(photos, tmp_path):
    def trial(seed: int) -> Trial:
        return Trial(
            dataset=str(photos),
            algorithm="erm",
            train_domains=("dawn", "noon"),
            test_domains=("night",),
            trial_seed=seed,
            steps=STEPS,
            backbone="small_cnn",
            weights="none",
            image_size=16,
            overrides={"batch_size": 4},
        )

    return {name: (trial(seed), tmp_path / name) for seed, name in enumerate(("first", "second"))}


@pytest.mark.slow
def test_a_killed_worker_costs_one_trial_and_running_again_completes_it(jobs):
    killed = []

    def kill_first(name: str, step: int, steps: int) -> None:
        if name == "first" and not killed:
            killed.extend(p.pid for p in multiprocessing.active_children())
            os.kill(killed[0], signal.SIGKILL)

    with pytest.raises(InputError, match=r"1 of 2 trainings failed; first: .*-9.* Run again"):
        run_local(jobs, slots=1, report=kill_first)
    assert len(killed) == 1
    finished = {name: (out / "model.json").is_file() for name, (_, out) in jobs.items()}
    assert finished == {"first": False, "second": True}

    model = jobs["second"][1] / "model.safetensors"
    time = model.stat().st_mtime_ns
    told = []
    run_local(jobs, slots=2, report=lambda name, step, steps: told.append((name, step)))
    assert (jobs["first"][1] / "model.json").is_file()
    assert {name for name, _ in told} == {"first"}
    assert told[-1] == ("first", STEPS)
    assert model.stat().st_mtime_ns == time


@pytest.mark.slow
def test_a_mistake_is_told_in_the_workers_own_words(jobs, tmp_path):
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "thesis.tex").touch()
    with pytest.raises(InputError, match=r"first: .*thesis|first: .*not empty"):
        run_local({"first": jobs["first"]}, slots=1)


def test_a_finished_model_of_another_trial_is_not_taken_for_this_one(jobs, inline):
    trial, out = jobs["first"]
    run_local({"first": (trial, out)}, slots=1)
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    with pytest.raises(InputError, match=r"first holds another trial \(it differs in steps\): choose another"):
        run_local({"second": jobs["second"], "first": (replace(trial, steps=STEPS + 1), out)}, slots=1)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    assert not jobs["second"][1].exists()  # told before anything is trained


def killer(*names: str, times: int):
    """A report that kills the worker of a job at its first word, so many times."""
    killed: list[str] = []

    def report(name: str, step: int, steps: int) -> None:
        if name in names and len(killed) < times:
            killed.append(name)
            for process in multiprocessing.active_children():
                os.kill(process.pid, signal.SIGKILL)

    return killed, report


@pytest.mark.slow
def test_a_killed_trial_is_resumed_and_its_records_are_those_of_one_that_was_not(make_job, slow, tmp_path):
    job, whole = (make_job(tmp_path / name, algorithm=slow, steps=6) for name in ("run", "whole"))
    killed, report = killer("run", times=1)
    told = []

    def both(name: str, step: int, steps: int) -> None:
        told.append(step)
        if step == 3:  # a checkpoint is there
            report(name, step, steps)

    assert run_jobs({"run": job}, options=EngineOptions(slots=1, retries=1), report=both) == {}
    assert killed == ["run"]
    assert told[:3] == [1, 2, 3]
    assert told[told.index(3) + 1] in (3, 4)  # not from the start
    perform(whole)
    for name in ("records.jsonl", "model.safetensors", "model.json"):
        assert (job.out / name).read_bytes() == (whole.out / name).read_bytes()
    state = read_state(job.out)
    assert state
    assert (state.word, state.attempts) == ("done", 2)


@pytest.mark.slow
def test_a_trial_that_keeps_dying_is_given_up_and_the_others_go_on(make_job, slow, tmp_path):
    jobs = {name: make_job(tmp_path / name, (), algorithm=slow, trial_seed=i) for i, name in enumerate(("bad", "good"))}
    killed, report = killer("bad", times=2)
    failed = run_jobs(jobs, options=EngineOptions(slots=1, retries=1), report=report)
    assert failed == {"bad": "its process ended with status -9"}
    assert killed == ["bad", "bad"]
    states = {name: read_state(job.out) for name, job in jobs.items()}
    assert states["bad"]
    assert states["good"]
    assert (states["bad"].word, states["bad"].reason) == ("failed", failed["bad"])
    assert states["good"].word == "done"


def test_a_mistake_is_not_tried_again(make_job, inline, tmp_path):
    job = make_job(tmp_path / "run", overrides={"lr": "abc"})
    failed = run_jobs({"run": job}, options=EngineOptions(slots=1, retries=5))
    assert "'abc'" in failed["run"]
    state = read_state(job.out)
    assert state
    assert state.attempts == 1


@pytest.mark.parametrize(("engine", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_missing_extra_is_named(engine, package, monkeypatch, make_job, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"{package} cannot be imported .* pip install 'itta\[{engine}\]'"):
        run_jobs({"run": make_job(tmp_path / "run")}, engine)


@pytest.mark.skipif(bool(shutil.which("srun")), reason="this machine has SLURM")
def test_slurm_where_there_is_none(make_job, tmp_path):
    with pytest.raises(InputError, match="submitit cannot use SLURM here"):
        run_jobs({"run": make_job(tmp_path / "run")}, "slurm", EngineOptions(folder=tmp_path))


@pytest.mark.slow
def test_the_queue_of_submitit(make_job, slow, tmp_path):
    """Through its local executor: a job that is killed is queued again, a mistake is told, records are the same."""
    jobs = {
        "killed": make_job(tmp_path / "killed", algorithm=slow),
        "mistaken": make_job(tmp_path / "mistaken", overrides={"lr": "abc"}),
    }
    killed: list[int] = []

    def kill(name: str, step: int, steps: int) -> None:
        state = read_state(jobs[name].out)
        if name == "killed" and not killed and state and state.word == "running":
            killed.append(state.pid)
            os.kill(state.pid, signal.SIGKILL)

    options = EngineOptions(cluster="local", folder=tmp_path, retries=1, settings={"timeout_min": 2})
    failed = run_jobs(jobs, "slurm", options, kill)
    assert len(killed) == 1
    assert failed.keys() == {"mistaken"}
    assert "'abc'" in failed["mistaken"]
    state = read_state(jobs["killed"].out)
    assert state
    assert (state.word, state.attempts) == ("done", 2)
    whole = make_job(tmp_path / "whole", algorithm=slow)
    perform(whole)
    assert (jobs["killed"].out / "records.jsonl").read_bytes() == (whole.out / "records.jsonl").read_bytes()


def test_a_job_cut_off_by_the_queue_is_queued_again(make_job, tmp_path):
    job = make_job(tmp_path / "run")
    again = Attempt().checkpoint(job)
    assert isinstance(again.function, Attempt)
    assert again.args == (job,)
    assert again.result() == Ending("done")


class Elsewhere:
    """An engine whose nodes write to a disk of their own: it says done, and nothing is here."""

    slots = 1

    def __init__(self, options: EngineOptions, report: object) -> None:
        self.names: list[str] = []

    def start(self, name: str, job: object) -> None:
        self.names.append(name)

    def ended(self):
        yield self.names.pop(), Ending("done")

    def close(self) -> None:
        """Nothing was started."""


def test_an_engine_that_wrote_nothing_here_fails_the_trial(make_job, tmp_path, monkeypatch):
    monkeypatch.setitem(ENGINES, "elsewhere", f"{__name__}:Elsewhere")
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or type("Here", (), {"Elsewhere": Elsewhere}))
    failed = run_jobs({"run": make_job(tmp_path / "run")}, "elsewhere")
    assert f"{tmp_path / 'run'} holds no model here" in failed["run"]
    assert "all nodes share" in failed["run"]
