"""Unpack an archive from a stranger: regular files only, inside one folder, within limits."""

import errno
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from itta.errors import InputError, first_line
from itta.progress import ReportProgress, silent

_CHUNK = 2**18


@dataclass(frozen=True)
class Limits:
    """Limits far above any archive of images, and below an archive made to fill the disk."""

    files: int = 1_000_000
    bytes: int = 60 * 10**9
    ratio: float = 100.0  # unpacked size to packed size
    slack: int = 10**7  # bytes that may be unpacked before the ratio is checked


LIMITS = Limits()


class _Refused(Exception):
    """The reason why a member is not unpacked."""


class _Member(NamedTuple):
    name: str
    end: int  # its last byte in the archive
    content: IO[bytes] | None  # None: it is not a regular file inside the folder


def unpack(archive: Path, folder: Path, limits: Limits = LIMITS, report: ReportProgress = silent) -> None:
    """Unpack a zip or tar file into a folder. If a member is refused, the files before it stay there.

    tarfile's own data filter runs too, but alone it is not enough: it does not limit files and bytes, it renames
    absolute paths instead of refusing them, and it does not exist for zip files.
    """
    members = _zip_members if zipfile.is_zipfile(archive) else _tar_members
    if members is _tar_members and not _is_tar(archive):
        raise InputError(
            f"{archive} is neither a zip nor a tar file, or it is cut short: delete it and download it again."
        )
    packed, written, name = archive.stat().st_size, 0, "?"
    try:
        for count, (name, end, content) in enumerate(members(archive, folder), start=1):
            if count > limits.files:
                raise _Refused(f"is one of more than {limits.files:,} files")
            target = folder / safe_path(name)
            if content is None:
                raise _Refused("is a link or a device, or leads through a link")
            target.parent.mkdir(parents=True, exist_ok=True)
            with content, open(target, "wb") as file:
                while chunk := content.read(_CHUNK):
                    written += len(chunk)
                    _check_written(written, packed, limits)
                    file.write(chunk)
            report(f"unpack {archive.name}", min(end, packed), packed)
    except _Refused as error:
        raise InputError(f"{archive} is not unpacked: {name!r} {error}. Is it the right file?") from error
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
    return InputError(f"{archive} is damaged or cut short ({first_line(error)}): delete it and download it again.")


def _is_tar(archive: Path) -> bool:
    try:
        return tarfile.is_tarfile(archive)
    except (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, ValueError):
        return False


def _check_written(written: int, packed: int, limits: Limits) -> None:
    if written > limits.bytes:
        raise _Refused(f"exceeds the limit of {limits.bytes / 1e9:g} GB unpacked")
    if written > limits.slack and written > limits.ratio * packed:
        raise _Refused(f"makes the archive unpack to more than {limits.ratio:g} times its size")


def safe_path(name: str) -> Path:
    """Return a name from an archive or a list as a relative path that cannot leave its folder.

    >>> safe_path("photo/dog/1.jpg").as_posix()
    'photo/dog/1.jpg'
    """
    pure = PurePosixPath(name)
    if not pure.parts or "\0" in name or "\\" in name or ":" in name or pure.is_absolute() or ".." in pure.parts:
        raise _Refused("is a path that leads out of the folder")
    return Path(*pure.parts)


def checked_path(name: str, where: str) -> Path:
    """Return `safe_path` of a name in a list. The error says where in the list a bad name is."""
    try:
        return safe_path(name)
    except _Refused as error:
        raise InputError(f"{where}: {name!r} {error}. Is it the right file?") from error


def _zip_members(archive: Path, folder: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as file:
        for member in file.infolist():
            if member.is_dir():
                continue
            regular = stat.S_IFMT(member.external_attr >> 16) in (0, stat.S_IFREG)
            end = member.header_offset + member.compress_size
            yield _Member(member.filename, end, file.open(member) if regular else None)


def _tar_members(archive: Path, folder: Path) -> Iterator[_Member]:
    with open(archive, "rb") as raw, tarfile.open(fileobj=raw, mode="r:*") as file:
        for member in file:
            if member.isdir():
                continue
            content = file.extractfile(member) if member.isreg() and _passes_data_filter(member, folder) else None
            yield _Member(member.name, raw.tell(), content)
        while file.fileobj is not None and file.fileobj.read(_CHUNK):  # to the end, where the checksum is
            pass


def _passes_data_filter(member: tarfile.TarInfo, folder: Path) -> bool:
    """Tell whether tarfile's own filter lets a member pass; early patch releases of Python 3.10 and 3.11 have none."""
    if not hasattr(tarfile, "data_filter"):
        return True
    try:
        tarfile.data_filter(member, str(folder))
    except tarfile.FilterError:
        return False
    return True
