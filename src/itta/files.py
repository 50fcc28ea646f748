"""Files that a crash leaves whole: written at once, appended line by line, and locked against other processes."""

import errno
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from itta.errors import InputError

POLL = 0.01  # seconds between two attempts to take a lock


class Busy(InputError):
    """Another process holds the lock."""


class CannotLock(InputError):
    """The file system has no locks."""


def replace_text(path: Path, text: str) -> None:
    """Write a whole file at once: a reader, or a crash, sees the old file or the new one."""
    replace_lines(path, [text])


def replace_lines(path: Path, lines: Iterable[str]) -> None:
    with complete(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)


@contextmanager
def complete(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to. It replaces ``path`` when the block ends well, and is deleted otherwise."""
    if not path.parent.is_dir():
        raise InputError(f"there is no directory {path.parent} to write {path.name} into: make it, or choose another.")
    if path.is_dir():
        raise InputError(f"{path} is a directory: name a file.")
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def append_text(path: Path, text: str) -> None:
    """Append whole lines and flush them to the disk; several processes may append to one file.

    The lines are one write under a lock. A last line that a crash cut off is deleted first.
    """
    data = text.encode()
    with lock_for_writing(path):
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        try:
            size = delete_torn_line(file)
            if os.write(file, data) < len(data):
                os.ftruncate(file, size)
                raise OSError(errno.ENOSPC, "no room to append", str(path))
            os.fsync(file)
        finally:
            os.close(file)


def delete_torn_line(file: int) -> int:
    """Delete a last line without an end, and return the size of the file.

    Reads the last byte only, unless there is a line to delete.
    """
    size = os.lseek(file, 0, os.SEEK_END)
    if size == 0:
        return 0
    os.lseek(file, -1, os.SEEK_END)
    if os.read(file, 1) != b"\n":
        os.lseek(file, 0, os.SEEK_SET)
        with os.fdopen(os.dup(file), "rb") as whole:
            size = whole.read().rfind(b"\n") + 1
        os.ftruncate(file, size)
    return size


@contextmanager
def lock_for_writing(path: Path) -> Iterator[None]:
    """Wait until no other process writes to a file; keep others out until the block ends.

    The lock is a file of its own, so it also holds while ``path`` is replaced.
    """
    with hold_lock(path.with_name(f".{path.name}.lock"), math.inf):
        yield


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
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK):  # these mean: held by another process
            raise CannotLock(
                f"the file system of {path} has no file locks ({error.strerror}): choose a folder on another one."
            ) from None
    finally:
        os.close(file)
