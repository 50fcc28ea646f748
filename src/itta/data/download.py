"""Fetch a file over HTTP: resumed where it stopped, in this run or an earlier one, and whole or not at all."""

import hashlib
import http.client
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from itta.errors import InputError

Report = Callable[[int, int], None]
_CHUNK = 2**18
_TRY_AGAIN = (408, 425, 429, 500, 502, 503, 504)


class NotAFile(InputError):
    """The server sent a page for people instead of the file."""


def download(
    url: str,
    path: Path,
    *,
    md5: str | None = None,
    report: Report = lambda done, total: None,
    attempts: int = 5,
    pause: float = 1.0,
    timeout: float = 30.0,
) -> None:
    """Fetch a URL to a path; what has come so far stays in PATH.part, and another call goes on from there.

    Gives up after so many attempts in a row that brought nothing.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise InputError(f"cannot download {url}: expected an address that begins with http:// or https://.")
    part = path.with_name(f"{path.name}.part")
    failures = 0
    while True:
        before = size_of(part)
        try:
            if _fetch(url, part, report, timeout):
                break
            reason = "the connection ended early"
        except HTTPError as error:
            if error.code == 416:  # beyond the end: what we have belongs to another file
                _forget(part)
            elif error.code not in _TRY_AGAIN:
                raise InputError(f"cannot download {url}: the server answered {error.code} {error.reason}.") from error
            reason = f"the server answered {error.code} {error.reason}"
        except (URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        failures = 1 if size_of(part) > before else failures + 1
        if failures >= attempts:
            raise InputError(
                f"cannot download {url}: {reason}. {size_of(part):,} bytes are kept in {part}: "
                "run the same command again to go on from there."
            )
        time.sleep(pause * 2 ** (failures - 1))
    _check(url, part, md5)
    os.replace(part, path)
    _forget(part)


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _fetch(url: str, part: Path, report: Report, timeout: float) -> bool:
    """Add what the server sends to the part; return whether it is whole."""
    have = size_of(part)
    headers = {"User-Agent": "itta", "Accept-Encoding": "identity"}
    validator = _validator_of(part, url)
    if have and validator is None:
        _forget(part)  # of another address, or nobody can say whether the file has changed since
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
                report(done, max(total or 0, done))
        return total is None or done >= total


def _extent(response: http.client.HTTPResponse) -> tuple[int, int | None]:
    """Where the answer starts in the file, and how long the file is, if the server says so."""
    length = response.headers.get("Content-Length")
    if response.status != 206:
        return 0, int(length) if length and length.isdecimal() else None
    try:
        extent, _, total = response.headers["Content-Range"].removeprefix("bytes ").partition("/")
        return int(extent.partition("-")[0]), int(total)
    except (AttributeError, KeyError, ValueError) as error:
        raise http.client.HTTPException(f"a strange Content-Range {response.headers['Content-Range']!r}") from error


def _validator(response: http.client.HTTPResponse) -> str:
    """What tells whether the file on the server is still the same; empty if the server does not say."""
    tag = response.headers.get("ETag", "")
    return tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified", "")


def _notes(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _note(part: Path, url: str, validator: str) -> None:
    _notes(part).write_text(json.dumps({"url": url, "validator": validator}), encoding="utf-8")


def _validator_of(part: Path, url: str) -> str | None:
    """The validator of what has come so far, None if it cannot be gone on from."""
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
            f"what {url} sent has the checksum {digest.hexdigest()}, not the published {md5}: it was thrown away. "
            "Run the same command again, or name another place with --url."
        )
