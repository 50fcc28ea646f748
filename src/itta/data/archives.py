"""Unpack an archive that somebody else made: regular files only, inside one folder, within limits."""

import errno
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from itta.errors import InputError, first_line

_CHUNK = 2**18
Report = Callable[[int, int], None]


@dataclass(frozen=True)
class Limits:
    """What an archive of images stays far below, and one made to fill the disk does not."""

    files: int = 1_000_000
    bytes: int = 60 * 10**9
    ratio: float = 100.0  # unpacked size to packed size
    slack: int = 10**7  # bytes within which the ratio is not looked at


LIMITS = Limits()


class _Refused(Exception):
    """Why a member is not unpacked."""


def unpack(archive: Path, folder: Path, limits: Limits = LIMITS, report: Report = lambda done, total: None) -> None:
    """Unpack a zip or tar file into a folder; what is already unpacked when a member is refused stays there."""
    members = _zip_members if zipfile.is_zipfile(archive) else _tar_members
    if members is _tar_members and not _is_tar(archive):
        raise InputError(f"{archive} is neither a zip nor a tar file, or it is cut short: delete it and get it again.")
    packed, written = archive.stat().st_size, 0
    name = "?"
    try:
        for count, (name, read_at, stream) in enumerate(members(archive), start=1):
            if count > limits.files:
                raise _Refused(f"more than {limits.files:,} files")
            target = folder / safe_path(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            with stream, open(target, "wb") as file:
                while chunk := stream.read(_CHUNK):
                    written += len(chunk)
                    if written > limits.bytes:
                        raise _Refused(f"more than {limits.bytes / 1e9:g} GB unpacked")
                    if written > limits.slack and written > limits.ratio * packed:
                        raise _Refused(f"more than {limits.ratio:g} times its size unpacked")
                    file.write(chunk)
            report(min(read_at, packed), packed)
    except _Refused as error:
        raise InputError(f"{archive} is not unpacked: {name!r}: {error}. Is it the right file?") from error
    except InputError:
        raise
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG):
            reason = f"{name!r} cannot be a file: {error.strerror}"
            raise InputError(f"{archive} is not unpacked: {reason}. Is it the right file?") from error
        if error.errno not in (None, errno.EINVAL):  # the disk's complaint, not that of gzip or of a wrong offset
            raise
        raise _damaged(archive, error) from error
    except Exception as error:  # a damaged archive can make its reader raise nearly anything
        raise _damaged(archive, error) from error


def _damaged(archive: Path, error: Exception) -> InputError:
    return InputError(f"{archive} is damaged or cut short ({first_line(error)}): delete it and get it again.")


def _is_tar(archive: Path) -> bool:
    try:
        return tarfile.is_tarfile(archive)
    except (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, ValueError):
        return False


def safe_path(name: str) -> Path:
    """Return a name from outside as a relative path that cannot leave its folder.

    >>> safe_path("photo/dog/1.jpg").as_posix()
    'photo/dog/1.jpg'
    """
    pure = PurePosixPath(name)
    if not pure.parts or "\0" in name or "\\" in name or ":" in name or pure.is_absolute() or ".." in pure.parts:
        raise _Refused("a path that leads elsewhere")
    return Path(*pure.parts)


def checked_path(name: str, where: str) -> Path:
    """`safe_path` for names in a list; says where a bad one was found."""
    try:
        return safe_path(name)
    except _Refused as error:
        raise InputError(f"{where}: {name!r} is {error}. Is it the right file?") from error


def _zip_members(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Yield name, place in the archive and contents of each file."""
    with zipfile.ZipFile(archive) as file:
        for member in file.infolist():
            mode = member.external_attr >> 16
            if member.is_dir():
                continue
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                raise _member_refused(archive, member.filename)
            yield member.filename, member.header_offset + member.compress_size, file.open(member)


def _tar_members(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    with open(archive, "rb") as raw, tarfile.open(fileobj=raw, mode="r:*") as file:
        for member in file:
            if member.isdir():
                continue
            stream = file.extractfile(member) if member.isreg() else None
            if stream is None:
                raise _member_refused(archive, member.name)
            yield member.name, raw.tell(), stream
        while file.fileobj is not None and file.fileobj.read(_CHUNK):  # to the end, where the checksum is
            pass


def _member_refused(archive: Path, name: str) -> InputError:
    return InputError(
        f"{archive} is not unpacked: {name!r} is a link or a device, not a regular file. Is it the right file?"
    )
