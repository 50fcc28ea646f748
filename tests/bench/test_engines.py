import multiprocessing
import os
import signal

import pytest

from itta.bench.engines import run_local
from itta.errors import InputError
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

    return {name: (trial(seed), tmp_path / name) for seed, name in enumerate(("first", "second", "third"))}


def test_a_killed_worker_costs_one_trial_and_running_again_completes_it(jobs):
    killed = []

    def kill_second(name: str, step: int) -> None:
        if name == "second" and not killed:
            killed.extend(p.pid for p in multiprocessing.active_children())
            os.kill(killed[0], signal.SIGKILL)

    with pytest.raises(InputError, match=r"1 of 3 trainings failed; second: .*-9.* Run again"):
        run_local(jobs, slots=1, report=kill_second)
    assert len(killed) == 1
    finished = {name: (out / "model.json").is_file() for name, (_, out) in jobs.items()}
    assert finished == {"first": True, "second": False, "third": True}

    times = {name: (jobs[name][1] / "model.safetensors").stat().st_mtime_ns for name in ("first", "third")}
    told = []
    run_local(jobs, slots=2, report=lambda name, step: told.append((name, step)))
    assert (jobs["second"][1] / "model.json").is_file()
    assert {name for name, _ in told} == {"second"}
    assert told[-1] == ("second", STEPS)
    for name, time in times.items():
        assert (jobs[name][1] / "model.safetensors").stat().st_mtime_ns == time


def test_a_mistake_is_told_in_the_workers_own_words(jobs, tmp_path):
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "thesis.tex").touch()
    with pytest.raises(InputError, match=r"first: .*thesis|first: .*not empty"):
        run_local({"first": jobs["first"]}, slots=1)
