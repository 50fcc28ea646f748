"""Run many jobs, on this machine or on a cluster. A job that dies is resumed from its checkpoint; the others go on."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from itta.errors import InputError
from itta.run.directory import refuse_another
from itta.run.job import Ending, Job, mark_failed
from itta.trial import Trial

Report = Callable[[str, int], None]  # name of the job, steps done
EngineName = Literal["local", "ray", "slurm"]


def quiet(name: str, step: int) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Options:
    """What the engines are told; each takes what it knows."""

    slots: int = 0  # trials at a time; 0 leaves it to the engine
    retries: int = 2  # of a trial that died
    cpus: int = 1  # of each trial, declared to a cluster
    gpus: float = 0.0
    address: str | None = None  # of a Ray cluster; none starts one on this machine
    folder: Path = Path(".")  # for what the launcher writes
    cluster: str = "slurm"  # submitit's name of it; "local" runs without one
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the cluster's queue


class Engine(Protocol):
    """Starts jobs, each in a process of its own, and tells how they ended."""

    slots: int

    def start(self, name: str, job: Job) -> None: ...

    def ended(self) -> Iterable[tuple[str, Ending]]:
        """Wait a moment at most, and yield those that have ended."""

    def close(self) -> None: ...


def make_engine(name: EngineName, options: Options, report: Report = quiet) -> Engine:
    if name == "local":
        from itta.sweep.engines.local import Local

        return Local(options, report)
    if name == "ray":
        from itta.sweep.engines.ray import Ray

        return Ray(options, report)
    from itta.sweep.engines.slurm import Slurm

    return Slurm(options, report)


def run_jobs(
    jobs: Mapping[str, Job], engine: EngineName = "local", options: Options | None = None, report: Report = quiet
) -> dict[str, str]:
    """Do every job; gives the reasons of those that failed for good, by name."""
    options = options or Options()
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
                if ending.kind == "done":
                    report(name, jobs[name].trial.steps)
                elif ending.kind == "crashed" and left[name] > 0:
                    left[name] -= 1
                    waiting.appendleft(name)
                else:
                    failed[name] = ending.reason
                    if ending.kind != "mistake":  # which it has written down itself
                        mark_failed(jobs[name], ending.reason)
    finally:
        chosen.close()
    return failed


def run_local(jobs: Mapping[str, tuple[Trial, Path]], slots: int, report: Report = quiet) -> None:
    """Train every job whose directory holds no finished model, on this machine; one that dies is left for later."""
    from itta.sweep.engines.local import threads_each

    for trial, out in jobs.values():
        refuse_another(out, trial)  # also a finished model of it, which would pass for this one's
    waiting = {name: job for name, job in jobs.items() if not (job[1] / "model.json").is_file()}
    threads = threads_each(min(slots, len(waiting)))
    wanted = {name: Job(trial, out, threads=threads) for name, (trial, out) in waiting.items()}
    failed = run_jobs(wanted, "local", Options(slots=slots, retries=0), report)
    if failed:
        name, reason = next(iter(failed.items()))
        raise InputError(f"{len(failed)} of {len(jobs)} trainings failed; {name}: {reason}. Run again to resume.")
