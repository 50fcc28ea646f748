"""Keep freed memory for the next step, instead of returning it to the system."""

from functools import cache

import torch

LARGEST = 32 * 2**20 - 2**14  # bytes; the C library learns nothing from larger blocks


@cache
def keep_freed_memory() -> None:
    """Let the C library of Linux (glibc) keep large pieces of memory, once for the process.

    It returns freed pieces above a limit to the system, and each new one then costs page faults. The largest piece
    freed so far sets the limit (mallopt(3), M_MMAP_THRESHOLD), so we free one of the largest size that counts. Nobody
    writes into it, so it takes no memory.
    """
    torch.empty(LARGEST, dtype=torch.uint8)
