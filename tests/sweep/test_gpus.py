"""Each trial of a sweep gets the GPUs that were declared for it. There need be none: a worker says which it got."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from itta.errors import InputError
from itta.run.job import Job, attempt, check_assigned
from itta.sweep.engines import EngineOptions, choose_devices, run_jobs
from itta.sweep.engines import local as module
from itta.sweep.engines.local import Local, gpus_of_slot, slots_here, visible_gpus

NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
MakeJob = Callable[..., Job]


@pytest.fixture
def three_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "visible_gpus", lambda: ("4", "5", "7"))


@NO_CUDA
@pytest.mark.parametrize(
    ("engine", "device", "gpus", "expected"),
    [
        ("local", "auto", None, ("auto", 0.0)),
        ("local", "cpu", None, ("cpu", 0.0)),
        ("ray", "cuda", None, ("cuda", 1.0)),
        ("local", "auto", 2.0, ("auto", 2.0)),
        ("ray", "auto", None, ("cpu", 0.0)),
        ("ray", "auto", 0.5, ("auto", 0.5)),
        ("slurm", "cuda", None, ("cuda", 1.0)),
    ],
)
def test_device_and_gpus_of_a_trial(engine: str, device: str, gpus: float | None, expected: tuple[str, float]) -> None:
    assert choose_devices(engine, device, gpus) == expected


@pytest.mark.usefixtures("three_gpus")
def test_a_machine_with_gpus_gives_one_to_each_trial() -> None:
    assert choose_devices("local", "auto", None) == ("auto", 1.0)
    assert slots_here(1.0) == 3
    assert slots_here(0.5) == 6
    assert Local(EngineOptions(gpus=2.0), print).slots == 1


@pytest.mark.parametrize(
    ("device", "gpus", "said"),
    [("cuda:1", None, "a device of its own"), ("cpu", 1.0, "leave one of them out"), ("cuda", 0.0, "number above 0")],
)
def test_contradictions_are_refused(device: str, gpus: float | None, said: str) -> None:
    with pytest.raises(InputError, match=said):
        choose_devices("ray", device, gpus)


@pytest.mark.usefixtures("three_gpus")
@pytest.mark.parametrize(("slots", "gpus"), [(4, 1.0), (2, 2.0), (0, 4.0), (7, 0.5)])
def test_more_trials_than_gpus_are_refused(slots: int, gpus: float) -> None:
    with pytest.raises(InputError, match=r"do not fit on the 3 GPUs .*lower --slots or --gpus"):
        Local(EngineOptions(slots=slots, gpus=gpus), print)


def test_gpus_are_named_as_the_environment_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-8932f937")
    assert visible_gpus() == ("3", "GPU-8932f937")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert visible_gpus() == ("0", "1")
    assert [gpus_of_slot(slot, 1, ("3", "5")) for slot in range(2)] == [("3",), ("5",)]


@NO_CUDA
@pytest.mark.slow
@pytest.mark.usefixtures("three_gpus")
def test_workers_see_the_gpus_of_their_slot_and_no_others(make_job: MakeJob, tmp_path: Path) -> None:
    """Real workers: torch cannot use the GPUs that they are given, and each says which those are."""
    jobs = {name: Job(**{**vars(make_job(tmp_path / name)), "gpus": 1.0}) for name in ("first", "second", "third")}
    failed = run_jobs(jobs, "local", EngineOptions(gpus=1.0, slots=2))
    assert failed.keys() == jobs.keys()
    given = [re.findall(r"CUDA_VISIBLE_DEVICES=(\S+)\)", reason)[0] for reason in failed.values()]
    assert set(given) == {"4", "5"}
    assert all("install a CUDA build of torch" in reason for reason in failed.values())


@NO_CUDA
@pytest.mark.slow
def test_the_queue_assigns_the_gpus_that_were_asked_for(make_job: MakeJob, tmp_path: Path) -> None:
    """Through submitit's local executor, which sets the variable as SLURM does."""
    job = Job(**{**vars(make_job(tmp_path / "run")), "gpus": 2.0})
    options = EngineOptions(cluster="local", folder=tmp_path, gpus=2.0, settings={"timeout_min": 2})
    failed = run_jobs({"run": job}, "slurm", options)
    assert "CUDA_VISIBLE_DEVICES=0,1)" in failed["run"]


def test_slurm_assigns_whole_gpus(tmp_path: Path, make_job: MakeJob) -> None:
    options = EngineOptions(cluster="local", folder=tmp_path, gpus=0.5)
    with pytest.raises(InputError, match="whole GPUs, got --gpus 0.5"):
        run_jobs({"run": make_job(tmp_path / "run")}, "slurm", options)


@NO_CUDA
def test_a_trial_does_not_leave_its_gpu_idle(make_job: MakeJob, tmp_path: Path) -> None:
    job = Job(**{**vars(make_job(tmp_path / "run")), "gpus": 1.0})
    with pytest.raises(InputError, match="1 GPUs are reserved for each trial"):
        check_assigned(job)
    assert attempt(job).kind == "mistake"
    check_assigned(make_job(tmp_path / "run"))
