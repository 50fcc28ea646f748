"""On a SLURM cluster, through submitit: a job of the queue for each trial.

The sweep's folder and the images must have the same path on every node.
"""

import time
from collections.abc import Iterator
from typing import Any

from itta.errors import InputError
from itta.progress import ReportProgress
from itta.run.job import Ending, Job, attempt
from itta.run.status import read_state
from itta.sweep.engines import EngineOptions

SLOTS = 50  # jobs in the queue at a time, unless the user says otherwise
TIMEOUT = 240  # minutes; a job that takes longer is queued again
PLAIN = ("timeout_min", "mem_gb")  # settings that submitit knows for every cluster; others are SLURM's own


class Attempt:
    """The callable that runs in the queue. A job that is cut off or preempted is queued again and goes on."""

    def __call__(self, job: Job) -> Ending:
        return attempt(job)

    def checkpoint(self, job: Job) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, job)


class Slurm:
    def __init__(self, options: EngineOptions, report: ReportProgress) -> None:
        try:
            import submitit
        except ImportError as error:
            raise InputError(f"submitit cannot be imported ({error}): pip install 'itta[slurm]'.") from error
        self.submitit: Any = submitit
        self.slots, self.report = options.slots or SLOTS, report
        self.jobs: dict[str, tuple[Any, Job]] = {}
        self.executor = self.make_executor(options)

    def make_executor(self, options: EngineOptions) -> Any:
        if options.gpus != int(options.gpus):
            raise InputError(f"SLURM assigns whole GPUs, got --gpus {options.gpus:g}: give a whole number.")
        asked = {k if k in PLAIN else f"slurm_{k}": as_number(v) for k, v in options.settings.items()}
        try:
            executor = self.submitit.AutoExecutor(folder=options.folder / "queue", cluster=options.cluster)
            executor.update_parameters(
                name="itta",
                cpus_per_task=options.cpus,
                gpus_per_node=int(options.gpus),
                **{"timeout_min": TIMEOUT, **asked},
            )
        except (RuntimeError, NameError, ValueError, TypeError, AssertionError) as error:
            raise InputError(f"submitit cannot use SLURM here: {error}.") from error
        return executor

    def start(self, name: str, job: Job) -> None:
        self.jobs[name] = self.executor.submit(Attempt(), job), job

    def ended(self) -> Iterator[tuple[str, Ending]]:
        time.sleep(0.5)
        for name, (queued, job) in list(self.jobs.items()):
            if not queued.done():
                state = read_state(job.out)
                if state and state.word == "running":
                    self.report(name, state.step, job.trial.steps)
                continue
            del self.jobs[name]
            try:
                yield name, Ending(*queued.result())
            except self.submitit.core.utils.UncompletedJobError as error:
                said = str(error).strip().splitlines() or [type(error).__name__]
                yield name, Ending("crashed", f"its job ended as {queued.state}: {said[0]}")

    def close(self) -> None:
        """Take the remaining jobs out of the queue, after an interruption."""
        for queued, _ in self.jobs.values():
            queued.cancel(check=False)


def as_number(value: Any) -> Any:
    """Turn digits into a number, and leave other text as it is.

    >>> as_number("60"), as_number("gpu")
    (60, 'gpu')
    """
    return int(value) if isinstance(value, str) and value.isdigit() else value
