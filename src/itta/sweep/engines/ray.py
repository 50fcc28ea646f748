"""On a Ray cluster: a plain task for each trial. Ray itself retries a task if its worker or node died.

The sweep's folder and the images must have the same path on every node.
"""

import os
from collections.abc import Iterator
from typing import Any

from itta.errors import InputError
from itta.progress import ReportProgress
from itta.run.job import Ending, Job, attempt
from itta.run.status import read_state
from itta.sweep.engines import EngineOptions

MANY = 10_000  # tasks that may wait in Ray's own queue


class Ray:
    def __init__(self, options: EngineOptions, report: ReportProgress) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError as error:
            raise InputError(f"ray cannot be imported ({error}): pip install 'itta[ray]'.") from error
        self.ray: Any = ray
        self.slots, self.report = options.slots or MANY, report
        self.jobs: dict[Any, tuple[str, Job]] = {}
        self.own = not ray.is_initialized()
        if self.own:
            self.connect(options)
        self.task = ray.remote(num_cpus=options.cpus, num_gpus=options.gpus, max_retries=options.retries)(attempt)

    def connect(self, options: EngineOptions) -> None:
        """Join a cluster, or start one that this machine alone can reach."""
        try:
            if options.address:
                self.ray.init(address=options.address, log_to_driver=False)
            else:
                cpus = (options.slots or max(1, (os.cpu_count() or 1) // options.cpus)) * options.cpus
                self.ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise InputError(f"no Ray cluster at {options.address or 'this machine'}: {error}.") from error

    def start(self, name: str, job: Job) -> None:
        self.jobs[self.task.remote(job)] = name, job

    def ended(self) -> Iterator[tuple[str, Ending]]:
        ready, waiting = self.ray.wait(list(self.jobs), timeout=1.0)
        for ref in ready:
            name, _ = self.jobs.pop(ref)
            try:
                yield name, Ending(*self.ray.get(ref))
            except self.ray.exceptions.RayError as error:  # Ray has retried it as often as it was told
                yield name, Ending("died", str(error).strip().splitlines()[0])
        for ref in waiting:
            name, job = self.jobs[ref]
            state = read_state(job.out)
            if state and state.word == "running":
                self.report(name, state.step, job.trial.steps)

    def close(self) -> None:
        if self.own:
            self.ray.shutdown()
