"""Run many jobs, on this machine or on a cluster. A job that dies is resumed from its checkpoint; the others go on.

`ENGINES` is the table of engines: a new one is a module with a class and one line there.
"""

import importlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from itta.errors import InputError, unknown
from itta.nn.device import resolve_device
from itta.progress import ReportProgress, silent
from itta.run.directory import refuse_another
from itta.run.job import Ending, Job, mark_failed
from itta.store.model import is_model
from itta.trial import Trial

NOTHING_HERE = (
    "the engine says that the trial is done, but {} holds no model here: put --out on a file system that all nodes "
    "share"
)
ENGINES: dict[str, str] = {  # name -> module:Class, imported on demand because each needs a package of its own
    "local": "itta.sweep.engines.local:Local",
    "ray": "itta.sweep.engines.ray:Ray",
    "slurm": "itta.sweep.engines.slurm:Slurm",
}


@dataclass(frozen=True)
class EngineOptions:
    """Options of all engines; each engine uses those that it knows."""

    slots: int = 0  # trials at a time; 0: the engine chooses
    retries: int = 2  # of a trial that died
    cpus: int = 1  # of each trial, declared to a cluster
    gpus: float = 0.0  # of each trial
    address: str | None = None  # of a Ray cluster; without one, Ray starts on this machine
    folder: Path = Path(".")  # for the files of the launcher
    cluster: str = "slurm"  # submitit's name of it; "local" runs without one
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the cluster's queue


class Engine(Protocol):
    """Starts jobs, each in a process of its own, and reports how they ended."""

    slots: int

    def start(self, name: str, job: Job) -> None: ...

    def ended(self) -> Iterable[tuple[str, Ending]]:
        """Wait a moment at most, and yield the jobs that have ended."""

    def close(self) -> None: ...


def make_engine(name: str, options: EngineOptions, report: ReportProgress = silent) -> Engine:
    """Make an engine of the table."""
    if name not in ENGINES:
        raise unknown("engine", name, list(ENGINES))
    module, _, cls = ENGINES[name].partition(":")
    engine: Engine = getattr(importlib.import_module(module), cls)(options, report)
    return engine


def choose_devices(engine: str, device: str, gpus: float | None) -> tuple[str, float]:
    """Return the device of each trial and the GPUs to reserve for it; ``gpus`` is None if the user did not say.

    On this machine a trial gets a GPU if there is one. On a cluster it gets those that the user asks for.
    """
    if ":" in device:
        raise InputError(
            f"a sweep gives each trial a device of its own, got {device}: name --device cuda and --gpus N."
        )
    if engine == "local":
        resolve_device(device)  # refuse an absent one before anything is written
    if gpus is None:
        from itta.sweep.engines.local import visible_gpus

        found = engine == "local" and device == "auto" and len(visible_gpus()) > 0
        gpus = 1.0 if found or device == "cuda" else 0.0
    if gpus > 0 and device in ("cpu", "mps"):
        raise InputError(f"--gpus {gpus:g} reserves GPUs that --device {device} does not use: leave one of them out.")
    if gpus <= 0 and device == "cuda":
        raise InputError(f"--device cuda needs GPUs, got --gpus {gpus:g}: give a number above 0.")
    on_cpu = gpus <= 0 and device == "auto" and (engine != "local" or torch.cuda.is_available())
    return ("cpu" if on_cpu else device), gpus


def run_jobs(
    jobs: Mapping[str, Job],
    engine: str = "local",
    options: EngineOptions = EngineOptions(),
    report: ReportProgress = silent,
) -> dict[str, str]:
    """Do every job; return the reasons of those that failed for good, by name."""
    chosen = make_engine(engine, options, report)
    waiting, running = deque(jobs), set[str]()
    left = dict.fromkeys(jobs, options.retries)
    failed: dict[str, str] = {}
    try:
        while waiting or running:
            while waiting and len(running) < chosen.slots:
                name = waiting.popleft()
                chosen.start(name, jobs[name])
                running.add(name)
            for name, ending in chosen.ended():
                running.remove(name)
                if ending.kind == "done" and not is_model(jobs[name].out):
                    ending = Ending("missing", NOTHING_HERE.format(jobs[name].out))
                if ending.kind == "done":
                    report(name, jobs[name].trial.steps, jobs[name].trial.steps)
                elif ending.kind == "crashed" and left[name] > 0:
                    left[name] -= 1
                    waiting.appendleft(name)
                else:
                    failed[name] = ending.reason
                    if ending.kind not in ("mistake", "missing"):  # a mistake wrote its own state
                        mark_failed(jobs[name], ending.reason)
    finally:
        chosen.close()
    return failed


def run_local(
    jobs: Mapping[str, tuple[Trial, Path]], slots: int, report: ReportProgress = silent, device: str = "auto"
) -> None:
    """Train every trial without a finished model, on this machine; a trial that dies is left for later."""
    from itta.sweep.engines.local import threads_each

    for trial, out in jobs.values():
        refuse_another(out, trial)  # a finished model of another trial would pass for this one's
    waiting = {name: job for name, job in jobs.items() if not is_model(job[1])}
    threads = threads_each(min(slots, len(waiting)))
    wanted = {name: Job(trial, out, threads=threads, device=device) for name, (trial, out) in waiting.items()}
    failed = run_jobs(wanted, "local", EngineOptions(slots=slots, retries=0), report)
    if failed:
        name, reason = next(iter(failed.items()))
        raise InputError(f"{len(failed)} of {len(jobs)} trainings failed; {name}: {reason}. Run again to resume.")
