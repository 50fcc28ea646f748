"""Locks that keep other processes out, on every file system that has them."""

import errno
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from itta.errors import InputError

POLL = 0.01  # seconds between two attempts to take a lock


class Busy(InputError):
    """Another process holds the lock."""


class CannotLock(InputError):
    """The file system has no locks."""


@contextmanager
def hold_lock(path: Path, patience: float = 0.0) -> Iterator[None]:
    """Hold a lock file; wait up to ``patience`` seconds for another process to release it.

    The operating system releases the lock when the process ends, also by kill -9. The file stays.
    """
    from filelock import FileLock, Timeout

    refuse_without_locks(path)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=-1 if patience == math.inf else patience, poll_interval=POLL)
    except Timeout:
        raise Busy(f"another process holds {path}: wait until it has ended, then try again.") from None
    try:
        yield
    finally:
        lock.release()


def refuse_without_locks(path: Path) -> None:
    """Say so where the file system has no locks.

    Ours, because filelock then waits for a lock that nobody holds, or takes one that outlives a killed process.
    """
    try:
        import fcntl
    except ImportError:  # Windows: every file system has locks
        return
    file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK):  # these mean: held by another process
            raise CannotLock(
                f"the file system of {path} has no file locks ({error.strerror}): choose a folder on another one."
            ) from None
    finally:
        os.close(file)
