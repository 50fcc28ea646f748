"""On a SLURM cluster, through submitit: a job of the queue for each trial.

The sweep's folder and the images must be found at the same path on every node.
"""

import time
from collections.abc import Iterator
from typing import Any

from itta.errors import InputError
from itta.run.job import Ending, Job, attempt
from itta.sweep.engines import Options, Report
from itta.sweep.standings import read_state

SLOTS = 50  # jobs in the queue at a time, unless told
TIMEOUT = 240  # minutes; what takes longer is queued again
PLAIN = ("timeout_min", "mem_gb")  # settings that submitit knows for every cluster; others are SLURM's own


class Attempt:
    """What runs in the queue. A job that is cut off or makes way for another is queued again and goes on."""

    def __call__(self, job: Job) -> Ending:
        return attempt(job)

    def checkpoint(self, job: Job) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, job)


class Slurm:
    def __init__(self, options: Options, report: Report) -> None:
        try:
            import submitit
        except ImportError as error:
            raise InputError(f"submitit cannot be imported ({error}): pip install 'itta[slurm]'.") from error
        self.submitit: Any = submitit
        self.slots, self.report = options.slots or SLOTS, report
        self.jobs: dict[str, tuple[Any, Job]] = {}
        self.executor = self.make_executor(options)

    def make_executor(self, options: Options) -> Any:
        asked = {k if k in PLAIN else f"slurm_{k}": number(v) for k, v in options.settings.items()}
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
                    self.report(name, state.step)
                continue
            del self.jobs[name]
            try:
                yield name, Ending(*queued.result())
            except self.submitit.core.utils.UncompletedJobError as error:
                said = str(error).strip().splitlines() or [type(error).__name__]
                yield name, Ending("crashed", f"its job ended as {queued.state}: {said[0]}")

    def close(self) -> None:
        """What is still queued after an interruption is taken out of the queue."""
        for queued, _ in self.jobs.values():
            queued.cancel(check=False)


def number(value: Any) -> Any:
    """
    >>> number("60"), number("gpu")
    (60, 'gpu')
    """
    return int(value) if isinstance(value, str) and value.isdigit() else value
