"""Memory that a step frees is there for the next one: measured in processes of their own, by their page faults."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import torch
from itta.nn.freed_memory import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if sys.argv[1] == "kept":
    keep_freed_memory()

def step():
    return [torch.ones(3 * 2**20) for _ in range(4)]  # 12 MB each

for _ in range(3):
    step()
before = faults()
for _ in range(5):
    step()
print((faults() - before) // 5)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has this limit")
def test_a_step_takes_the_memory_of_the_last_one() -> None:
    faults = {}
    for how in ("kept", "returned"):
        done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
        faults[how] = int(done.stdout)
    assert faults["kept"] < 100
    assert faults["returned"] > 20 * max(faults["kept"], 1)
