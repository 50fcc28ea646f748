"""Trials on a Ray cluster. Ray looks for a way out of the machine, so it is run where there is loopback only."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from itta.run.job import Job, perform

ALONE = ["unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
HERE = Path(__file__).parent


def may_be_alone() -> bool:
    if not shutil.which("unshare") or not shutil.which("ip"):
        return False
    return subprocess.run([*ALONE, "true"], capture_output=True, timeout=60).returncode == 0


def run_alone(command: list[str], **environment: str) -> str:
    """What a command prints that has no network but loopback; its processes end with it."""
    done = subprocess.run(
        [*ALONE, *command], capture_output=True, text=True, timeout=400, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture
def short():
    """A folder with a short name: Ray puts sockets there, whose paths must not be long."""
    folder = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip())
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.skipif(not may_be_alone(), reason="needs unshare and ip, and the right to a network of its own")
def test_a_lost_worker_and_a_lost_node_cost_nothing(make_job, slow, tmp_path, short, monkeypatch):
    pytest.importorskip("ray")

    def job(seed: int) -> Job:
        made = make_job(tmp_path / str(seed), ("t3a",), algorithm=slow, trial_seed=seed, steps=10)
        return replace(made, patience=60.0)

    jobs = {f"trial {seed}": job(seed) for seed in range(4)}
    jobs["with GPU"] = replace(make_job(tmp_path / "gpu"), gpus=1.0)
    jobs["mistaken"] = make_job(tmp_path / "mistaken", overrides={"lr": "abc"})
    told = {name: {**asdict(j), "trial": j.trial.to_json(), "out": str(j.out)} for name, j in jobs.items()}
    (tmp_path / "jobs.json").write_text(json.dumps(told))
    environment = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": str(short), "HOME": str(short)}
    environment["ITTA_TEST_SECONDS"] = "0.5"
    printed = run_alone([sys.executable, str(HERE / "ray_cluster.py"), str(tmp_path / "jobs.json")], **environment)
    found = json.loads(printed.splitlines()[-1])
    if not torch.cuda.is_available():  # Ray counts the GPUs that a node says it has, and names the one it assigns
        assert re.search(r"reserved for each trial \(CUDA_VISIBLE_DEVICES=[01]\)", found["with GPU"]["with GPU"])
    assert found["failed"].keys() == {"mistaken"}
    assert "'abc'" in found["failed"]["mistaken"]
    assert found["words"].pop("mistaken") == "failed"
    assert found["words"] == {f"trial {seed}": "done" for seed in range(4)}
    (killed,), (lost,) = found["killed"], found["lost"]
    assert found["attempts"][killed] >= 2
    assert found["attempts"][lost] >= 2 + (lost == killed)
    monkeypatch.setenv("ITTA_TEST_SECONDS", "0")
    for name in found["words"]:
        whole = replace(jobs[name], out=tmp_path / f"whole {name}")
        perform(whole)
        for file in ("records.jsonl", "model.safetensors"):
            assert (jobs[name].out / file).read_bytes() == (whole.out / file).read_bytes()
