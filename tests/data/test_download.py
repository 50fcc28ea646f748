"""Downloads from a local server that drops connections, changes files and sends web pages."""

import hashlib
import json
from pathlib import Path

import pytest

from itta.data.download import NotAFile, Patience, download
from itta.errors import InputError

DATA = bytes(range(256)) * 4000  # about 1 MB


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "file.zip"


def fetch(server, target: Path, attempts: int = 3, **options) -> None:
    download(f"{server.url}/file.zip", target, patience=Patience(attempts, pause=0.0), **options)


def test_a_file_comes_whole_with_its_progress(server, target) -> None:
    server.files["file.zip"] = DATA
    told: list[tuple[str, int, int]] = []
    fetch(server, target, report=lambda *args: told.append(args))
    assert target.read_bytes() == DATA
    assert told[-1] == ("file.zip", len(DATA), len(DATA))
    assert len(told) > 1
    assert [p.name for p in target.parent.iterdir()] == ["file.zip"]


def test_dropped_connections_are_taken_up_where_they_ended(server, target) -> None:
    server.files["file.zip"] = DATA
    server.drop = [300_000, 1, 200_000]
    fetch(server, target)
    assert target.read_bytes() == DATA
    assert [r for _, r in server.requests] == [None, "bytes=300000-", "bytes=300001-", "bytes=500001-"]


def test_a_later_run_goes_on_too(server, target) -> None:
    server.files["file.zip"] = DATA
    server.drop = [400_000, 0, 0]
    with pytest.raises(InputError, match=r"400,000 bytes are kept in .*file\.zip\.part.*same command again"):
        fetch(server, target)
    assert not target.exists()
    fetch(server, target)
    assert target.read_bytes() == DATA
    assert server.requests[-1] == ("file.zip", "bytes=400000-")


def test_progress_renews_patience(server, target) -> None:
    server.files["file.zip"] = DATA
    server.drop = [100_000] * 9
    fetch(server, target, attempts=2)
    assert target.read_bytes() == DATA


def test_a_file_that_changed_meanwhile_starts_again(server, target) -> None:
    server.files["file.zip"] = DATA
    server.drop = [400_000]
    with pytest.raises(InputError):
        fetch(server, target, attempts=1)
    server.files["file.zip"], server.etag = DATA[::-1], '"2"'
    fetch(server, target)
    assert target.read_bytes() == DATA[::-1]


@pytest.mark.parametrize(("ranges", "etag"), [(False, '"1"'), (True, None), (True, 'W/"1"')])
def test_a_server_that_cannot_resume_sends_all_again(server, target, ranges, etag) -> None:
    server.files["file.zip"], server.ranges, server.etag = DATA, ranges, etag
    server.drop = [400_000]
    fetch(server, target)
    assert target.read_bytes() == DATA


def test_a_part_longer_than_the_file_is_thrown_away(server, target) -> None:
    server.files["file.zip"] = DATA
    part = target.with_name("file.zip.part")
    part.write_bytes(b"x" * (len(DATA) + 1))
    notes = {"url": f"{server.url}/file.zip", "validator": '"1"'}
    target.with_name("file.zip.part.json").write_text(json.dumps(notes))
    fetch(server, target)
    assert target.read_bytes() == DATA


def test_a_part_of_another_address_is_not_gone_on_from(server, target) -> None:
    server.files["file.zip"] = DATA
    target.with_name("file.zip.part").write_bytes(b"x" * 100)
    target.with_name("file.zip.part.json").write_text('{"url": "http://elsewhere/file.zip", "validator": "\\"1\\""}')
    fetch(server, target)
    assert target.read_bytes() == DATA


def test_a_busy_server_is_asked_again_and_a_missing_file_is_not(server, target) -> None:
    server.files["file.zip"] = DATA
    server.statuses = [503, 500]
    fetch(server, target)
    assert target.read_bytes() == DATA
    del server.files["file.zip"]
    server.requests.clear()
    with pytest.raises(InputError, match="404"):
        fetch(server, target)
    assert len(server.requests) == 1


def test_a_server_that_stays_busy_is_given_up(server, target) -> None:
    server.statuses = [503] * 3
    with pytest.raises(InputError, match="503"):
        fetch(server, target)
    assert len(server.requests) == 3


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "application/octet-stream"])
def test_a_web_page_is_not_taken_for_a_file(server, target, kind) -> None:
    server.pages["file.zip"] = kind
    with pytest.raises(NotAFile, match="web page instead of a file"):
        fetch(server, target)
    assert not list(target.parent.iterdir())


def test_the_checksum_decides(server, target) -> None:
    server.files["file.zip"] = DATA
    fetch(server, target, md5=hashlib.md5(DATA).hexdigest())
    target.unlink()
    with pytest.raises(InputError, match=r"not the published 0123.*was deleted"):
        fetch(server, target, md5="0123")
    assert not list(target.parent.iterdir())


def test_nobody_there(server, target) -> None:
    server.http.shutdown()
    server.http.server_close()
    with pytest.raises(InputError, match="cannot download http://127"):
        fetch(server, target)


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://127.0.0.1/file.zip", "file.zip"])
def test_only_http(url, target) -> None:
    with pytest.raises(InputError, match="http://"):
        download(url, target)
