"""Download a file over HTTP. A download that stopped, in this run or an earlier one, continues where it stopped."""

import hashlib
import http.client
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from itta.errors import InputError
from itta.progress import ReportProgress, silent

_CHUNK = 2**18
_TRY_AGAIN = (408, 425, 429, 500, 502, 503, 504)


class NotAFile(InputError):
    """The server sent a web page instead of the file."""


@dataclass(frozen=True)
class Patience:
    """How long a download keeps trying."""

    attempts: int = 5  # in a row that bring no bytes
    pause: float = 1.0  # seconds after the first such attempt; doubled after each further one
    timeout: float = 30.0  # seconds without an answer


PATIENCE = Patience()


def download(
    url: str,
    path: Path,
    *,
    md5: str | None = None,
    report: ReportProgress = silent,
    patience: Patience = PATIENCE,
) -> None:
    """Download a URL to a path. The bytes so far are kept in PATH.part, and another call continues from there."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise InputError(f"cannot download {url}: expected an address that starts with http:// or https://.")
    part = path.with_name(f"{path.name}.part")
    failures = 0
    while True:
        before = size_of(part)
        try:
            if _fetch(url, part, report, patience.timeout):
                break
            reason = "the connection ended early"
        except HTTPError as error:
            if error.code == 416:  # beyond the end: the bytes we have are of another file
                _forget(part)
            elif error.code not in _TRY_AGAIN:
                raise InputError(f"cannot download {url}: the server answered {error.code} {error.reason}.") from error
            reason = f"the server answered {error.code} {error.reason}"
        except (URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        failures = 1 if size_of(part) > before else failures + 1
        if failures >= patience.attempts:
            raise InputError(
                f"cannot download {url}: {reason}. {size_of(part):,} bytes are kept in {part}: "
                "run the same command again to continue from there."
            )
        time.sleep(patience.pause * 2 ** (failures - 1))
    _check(url, part, md5)
    os.replace(part, path)
    _forget(part)


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _fetch(url: str, part: Path, report: ReportProgress, timeout: float) -> bool:
    """Append the server's answer to the part, and tell whether the file is complete."""
    have = size_of(part)
    headers = {"User-Agent": "itta", "Accept-Encoding": "identity"}
    validator = _validator_of(part, url)
    if have and validator is None:
        _forget(part)  # it is from another address, or the file may have changed since
        have = 0
    if have and validator:
        headers |= {"Range": f"bytes={have}-", "If-Range": validator}
    with urlopen(Request(url, headers=headers), timeout=timeout) as response:
        if response.headers.get_content_type() == "text/html":
            raise NotAFile(f"{url} sent a web page instead of a file.")
        start, total = _extent(response)
        if start != have and start != 0:
            _forget(part)
            return False
        _note(part, url, _validator(response))
        with open(part, "r+b" if part.exists() else "wb") as file:
            file.truncate(start)
            file.seek(start)
            done = start
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                done += len(chunk)
                report(part.name.removesuffix(".part"), done, max(total or 0, done))
        return total is None or done >= total


def _extent(response: http.client.HTTPResponse) -> tuple[int, int | None]:
    """Return the position of the answer in the file, and the length of the file, None if the server does not say."""
    length = response.headers.get("Content-Length")
    if response.status != 206:
        return 0, int(length) if length and length.isdecimal() else None
    try:
        extent, _, total = response.headers["Content-Range"].removeprefix("bytes ").partition("/")
        return int(extent.partition("-")[0]), int(total)
    except (AttributeError, KeyError, ValueError) as error:
        raise http.client.HTTPException(f"a wrong Content-Range {response.headers['Content-Range']!r}") from error


def _validator(response: http.client.HTTPResponse) -> str:
    """Return the mark of the file's version on the server; empty if the server gives none."""
    tag = response.headers.get("ETag", "")
    return tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified", "")


def _notes(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _note(part: Path, url: str, validator: str) -> None:
    _notes(part).write_text(json.dumps({"url": url, "validator": validator}), encoding="utf-8")


def _validator_of(part: Path, url: str) -> str | None:
    """Return the version mark of the bytes so far, or None if the download cannot continue from them."""
    try:
        notes = json.loads(_notes(part).read_text(encoding="utf-8"))
        return notes["validator"] or None if notes["url"] == url else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _notes(part).unlink(missing_ok=True)


def _check(url: str, part: Path, md5: str | None) -> None:
    with open(part, "rb") as file:
        head = file.read(512).lstrip().lower()
        if head.startswith((b"<!doctype html", b"<html")):
            _forget(part)
            raise NotAFile(f"{url} sent a web page instead of a file.")
        file.seek(0)
        digest = hashlib.md5(usedforsecurity=False)
        while md5 and (chunk := file.read(_CHUNK)):
            digest.update(chunk)
    if md5 and digest.hexdigest() != md5:
        _forget(part)
        raise InputError(
            f"the file from {url} has the checksum {digest.hexdigest()}, not the published {md5}, and was deleted. "
            "Run the same command again, or name another address with --url."
        )
