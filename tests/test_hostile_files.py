"""Thousands of mutated files: each is read or refused in one line. Nothing is written elsewhere; memory stays small."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "n"), [("files", 5000), ("images", 2000)])
def test_mutated_files_are_read_or_refused(kind: str, n: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fixtures.fuzzer", kind, str(n), str(tmp_path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["tracebacks"] == {}
    assert found["outside"] == []
    assert found["examples"] >= n
    assert found["peak_mb"] <= 1024
    kinds = {name.partition(":")[0] for name in found["ends"]}
    assert all(f"{name}: read" in found["ends"] or f"{name}: refused" in found["ends"] for name in kinds)
    assert sum(count for name, count in found["ends"].items() if name.endswith("refused")) > n / 4
