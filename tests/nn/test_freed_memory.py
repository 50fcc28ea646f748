"""Large pieces of memory come from what was freed before, and not from the system: asked of glibc, in new processes."""

import ctypes
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, sys
import torch
from itta.nn.freed_memory import keep_freed_memory

class Info(ctypes.Structure):  # struct mallinfo2 of malloc.h
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

library = ctypes.CDLL(None)
library.mallinfo2.restype = Info
if sys.argv[1] == "kept":
    keep_freed_memory()
before = library.mallinfo2().hblks  # pieces that go back to the system when they are freed
piece = torch.empty(31 * 2**20, dtype=torch.uint8)
print(library.mallinfo2().hblks - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="the C library is not glibc 2.33 or newer")
@pytest.mark.parametrize(("how", "pieces"), [("kept", "0"), ("returned", "1")])
def test_large_pieces_stay_with_the_process(how: str, pieces: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == pieces
