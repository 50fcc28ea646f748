"""Run by test_ray.py where there is loopback only: jobs on a cluster of two nodes, while a worker and a node are lost.

Reads jobs and prints what came of them, as JSON.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from itta.run.job import Job
from itta.run.status import read_state
from itta.settings import Adaptation, DataAccess
from itta.sweep.engines import EngineOptions, run_jobs
from itta.trial import Trial

EARLY = 3  # a step after which a trial of ten has still a while to go, though its word may be two seconds old
SMALL = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False, "node_ip_address": "127.0.0.1"}


class Trouble:
    """Kill the first worker that runs; then take a node away in the middle of a trial."""

    def __init__(self, cluster: Any, jobs: dict[str, Job]) -> None:
        self.cluster, self.jobs = cluster, jobs
        self.node = cluster.add_node(**SMALL)
        self.raylet = self.node.all_processes["raylet"][0].process.pid
        self.killed: dict[str, int] = {}  # name of the trial -> its worker
        self.lost: dict[str, int] = {}

    def __call__(self, name: str, step: int, steps: int) -> None:
        pid = self.worker_of(name)
        if pid is None:
            return
        if not self.killed:
            self.killed[name] = pid
            os.kill(pid, signal.SIGKILL)
        elif not self.lost and parent(pid) == self.raylet and step <= EARLY:
            self.lost[name] = pid
            self.cluster.remove_node(self.node, allow_graceful=False)

    def worker_of(self, name: str) -> int | None:
        state = read_state(self.jobs[name].out)
        ours = state and state.word == "running" and state.pid not in self.killed.values()
        return state.pid if state and ours else None


def parent(pid: int) -> int:
    """The process that started another one; a worker is started by the raylet of its node."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except FileNotFoundError:
        return -1


def from_json(values: dict[str, Any]) -> Job:
    adaptation = values["adaptation"]
    return Job(
        **{
            **values,
            "trial": Trial.from_json(values["trial"]),
            "out": Path(values["out"]),
            "access": DataAccess(**values["access"]),
            "adaptation": Adaptation(**{**adaptation, "adapters": tuple(adaptation["adapters"])}),
        }
    )


def main(path: Path) -> None:
    from ray.cluster_utils import Cluster

    jobs = {name: from_json(values) for name, values in json.loads(path.read_text()).items()}
    with_gpu = {name: jobs.pop(name) for name in [name for name, job in jobs.items() if job.gpus > 0]}
    cluster = Cluster(initialize_head=True, head_node_args=SMALL)
    try:
        trouble = Trouble(cluster, jobs)
        failed = run_jobs(jobs, "ray", EngineOptions(retries=3, address=cluster.address), trouble)
        states = {name: read_state(job.out) for name, job in jobs.items()}
        result = {
            "failed": failed,
            "killed": trouble.killed,
            "lost": trouble.lost,
            "attempts": {name: s.attempts for name, s in states.items() if s},
            "words": {name: s.word for name, s in states.items() if s},
        }
        cluster.add_node(**SMALL, num_gpus=2)
        result["with GPU"] = run_jobs(with_gpu, "ray", EngineOptions(gpus=1.0, address=cluster.address))
        print(json.dumps(result))
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
