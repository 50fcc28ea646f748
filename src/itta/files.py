"""The one writer of files: whole after a crash, and appended line by line by several processes.

Nothing is written through a link, onto a device, or over a file of a kind that itta does not write."""

import errno
import glob
import hashlib
import math
import mmap
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Literal

from itta.errors import InputError
from itta.locks import hold_lock

ABANDONED = 3600.0  # seconds without a write, after which a temporary file belongs to nobody
HEAD = 4096  # bytes that tell the kind of a file
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
TEXT_IMAGES = (b"P1", b"P2", b"P3")  # images of the PNM family that are text
Kind = Literal["text", "figure", "tensors", "zip", "onnx"]
KIND_NAMES: dict[Kind, str] = {
    "text": "a text file",
    "figure": "a figure of itta",
    "tensors": "a safetensors file",
    "zip": "a torch.export program",
    "onnx": "an ONNX file",
}


def replace_text(path: Path, text: str) -> None:
    """Write a whole file at once: a reader, or a crash, sees the old file or the new one."""
    replace_lines(path, [text])


def replace_lines(path: Path, lines: Iterable[str]) -> None:
    with complete(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)


@contextmanager
def complete(path: Path, kind: Kind = "text") -> Iterator[Path]:
    """Give a temporary path to write to. It replaces ``path`` when the block ends well, and is deleted otherwise.

    All output of itta goes through here. A device, a link, a directory, or a file of another ``kind`` (an image, say)
    is not replaced. The new file has the permissions of the user's umask.
    """
    refuse_to_replace(path, kind)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with naming_full_disk(path):
            delete_leftovers(path)
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            mode = os.fstat(file).st_mode & 0o777
            os.close(file)
            yield temporary
            with open(temporary, "rb+") as written:
                os.fsync(written.fileno())
            os.chmod(temporary, mode)  # safetensors makes files that only their owner can read
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def delete_leftovers(path: Path) -> None:
    """Delete the temporary files that killed processes left beside a file: ours by number, and those of an hour ago."""
    for old in path.parent.glob(f"{glob.escape(path.name)}.*.tmp"):
        number = old.name.removeprefix(f"{path.name}.").removesuffix(".tmp")
        with suppress(OSError):  # another process may delete it at the same time
            if number.isdigit() and (int(number) == os.getpid() or time.time() - old.stat().st_mtime > ABANDONED):
                old.unlink()


@contextmanager
def open_for_rows(path: Path, add: bool = False) -> Iterator[IO[str]]:
    """Open a text file to write row by row, or to add rows; the finished rows stay if a later one fails."""
    refuse_to_replace(path, "text")
    with naming_full_disk(path), open(path, "a" if add else "w", newline="", encoding="utf-8") as file:
        yield file


def refuse_to_replace(path: Path, kind: Kind) -> None:
    """Refuse a path at which no file can be written, or at which lies a file of a kind that itta does not write."""
    refuse_place(path)
    if not path.is_file():
        return
    with open(path, "rb") as file:
        head = file.read(HEAD)
    if head and not looks_like(kind, head):
        raise InputError(
            f"{path} exists and is not {KIND_NAMES[kind]}, so it is not replaced: choose another name, or delete it."
        )


def refuse_place(path: Path) -> None:
    """Refuse a path that is not a regular file in a directory, or a new one."""
    if not path.parent.is_dir():
        raise InputError(f"there is no directory {path.parent} to write {path.name} into: make it, or choose another.")
    if path.is_dir():
        raise InputError(f"{path} is a directory: name a file.")
    if path.is_symlink():
        raise InputError(f"{path} is a symbolic link, which is not replaced: name the file itself, or delete the link.")
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is a device or a pipe, not a file: name a file.")


def make_folder(path: Path) -> None:
    """Make a folder to write into, with its parents; refuse the path of a file, a device or a broken link."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise InputError(f"{path} is no directory, and files would be written into it: choose another --out.") from None


def refuse_pipe(path: Path) -> None:
    """Refuse to read a pipe or a device: that may never end."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise InputError(f"{path} is a device or a pipe, not a file: replace it, or delete it.")


def refuse_input(path: Path, inputs: Iterable[str | Path]) -> None:
    """Refuse to write onto a file that the same command reads."""
    for given in map(Path, inputs):
        inside = given.is_dir() and path.suffix in (".json", ".jsonl") and given.resolve() in path.resolve().parents
        if path.exists() and (path.resolve() == given.resolve() or inside):
            raise InputError(f"{path} is an input of this command, so it is not replaced: choose another name.")


def looks_like(kind: Kind, head: bytes) -> bool:
    """Tell from its first bytes whether a file is of a kind that itta writes.

    >>> looks_like("text", b"file,label"), looks_like("text", b"RIFF" + bytes(4)), looks_like("tensors", b"file,label")
    (True, False, False)
    """
    if kind == "text":
        return b"\0" not in head and is_utf8(head) and not head.startswith(TEXT_IMAGES)
    if kind == "figure":
        return b"matplotlib" in head.lower() or head.startswith(b"%PDF")
    if kind == "tensors":
        return head[8:9] == b"{"
    if kind == "zip":
        return head.startswith(b"PK")
    return head[:1] == b"\x08"  # onnx: its first field is the version of the format


def is_utf8(head: bytes) -> bool:
    """Tell whether bytes are UTF-8, the last character of which may be cut off."""
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start > len(head) - 4 and len(head) == HEAD
    return True


@contextmanager
def naming_full_disk(path: Path) -> Iterator[None]:
    """Turn the error of a full disk, whichever library raises it, into one line that names the file."""
    try:
        yield
    except Exception as error:
        if not is_full_disk(error):
            raise
        raise InputError(
            f"{path} cannot be written: the disk is full, or a limit on file size is reached. Free some space, or "
            "choose another place, and run the same command again."
        ) from error


def is_full_disk(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in FULL:
        return True
    return any(f"os error {number}" in str(error) for number in FULL)  # safetensors, which is written in Rust


def walk_files(folder: Path, follow: bool = False) -> Iterator[Path]:
    """Yield the files below a folder, without hidden folders; a folder that cannot be read is an error.

    ``follow`` enters folders that are links, unless they lead back to a folder that contains them.
    """
    for parent, files in walk_folders(folder, follow):
        yield from (Path(parent, name) for name in files)


def walk_folders(folder: Path, follow: bool = False) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder that `walk_files` enters, with the names of its files."""

    def refuse(error: OSError) -> None:
        raise InputError(
            f"cannot read the folder {error.filename} ({error.strerror}): change its permissions, or move it away."
        ) from error

    for parent, folders, files in os.walk(folder, onerror=refuse, followlinks=follow):
        folders[:] = [name for name in folders if not name.startswith(".") and not leads_back(Path(parent, name))]
        yield parent, files


def leads_back(folder: Path) -> bool:
    """Tell whether a folder is a link to one that contains it: following it would never end."""
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve())


def append_text(path: Path, text: str) -> None:
    """Append whole lines and flush them to the disk; several processes may append to one file.

    The lines are one write under a lock. A last line that a crash cut off is deleted first.
    """
    data = text.encode()
    refuse_place(path)
    with lock_for_writing(path), naming_full_disk(path):
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
        file = os.open(path, flags, 0o666)
        try:
            size = delete_torn_line(file)
            try:
                if os.write(file, data) < len(data):
                    raise OSError(errno.ENOSPC, "no room to append", str(path))
            except OSError:
                os.ftruncate(file, size)
                raise
            os.fsync(file)
        finally:
            os.close(file)


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file, which is mapped: its pages stay in memory for the reader that comes next."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return hashlib.sha256(data).hexdigest()


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
