"""Files under several writers, crashes, kill -9, and file systems without locks."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from itta import files
from itta.errors import InputError
from itta.files import append_text, complete, lock_for_writing, replace_text
from itta.locks import Busy, CannotLock, hold_lock


def start(code: str, *args: object) -> subprocess.Popen:
    head = "import sys, time; from pathlib import Path; from itta.files import *; path = Path(sys.argv[1])\n"
    return subprocess.Popen([sys.executable, "-c", head + code, *map(str, args)], stdout=subprocess.PIPE, text=True)


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def fill_the_disk() -> None:
        real = os.write
        monkeypatch.setattr(files.os, "write", lambda file, data: real(file, data[: len(data) // 2]))

    return fill_the_disk


def test_the_old_file_stays_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.json"
    replace_text(path, "old")

    def crash(number: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(files.os, "fsync", crash)
    with pytest.raises(OSError, match="disk full"):
        replace_text(path, "new, and longer")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"]


def test_temporary_files_of_killed_processes_are_deleted_with_the_next_write(tmp_path: Path) -> None:
    path, hour = tmp_path / "model[1].onnx", 3600
    left = {name: tmp_path / f"{path.name}.{name}.tmp" for name in ("1", "2", "notes")}
    for file in left.values():
        file.write_text("half")
    for name in ("1", "notes"):  # the process 2 may still be writing; "notes" is nobody's but the user's
        os.utime(left[name], (time.time() - 2 * hour,) * 2)
    replace_text(path, "whole")
    assert sorted(tmp_path.iterdir()) == sorted([path, left["2"], left["notes"]])


def test_a_file_appears_when_its_block_ends_well(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with complete(path) as temporary:
        temporary.write_bytes(b"half")
        assert not path.exists()
        temporary.write_bytes(b"whole")
    assert path.read_bytes() == b"whole"
    with pytest.raises(ZeroDivisionError), complete(path) as temporary:
        temporary.write_bytes(b"half" * (1 // (temporary.write_bytes(b"h") - 1)))
    assert path.read_bytes() == b"whole"
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


def test_places_that_no_file_can_be_written_to(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no directory .*nowhere"):
        replace_text(tmp_path / "nowhere" / "a.txt", "")
    with pytest.raises(InputError, match="is a directory: name a file"):
        replace_text(tmp_path, "")


@pytest.mark.parametrize("torn", ["", "one\ntwo\nthr", "thr"])
def test_a_line_that_a_crash_cut_off_is_deleted(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "log"
    path.write_text(torn)
    append_text(path, "next\n")
    assert path.read_text() == torn[: torn.rfind("\n") + 1] + "next\n"


def test_a_line_that_finds_no_room_leaves_nothing_behind(tmp_path: Path, no_room: Callable[[], None]) -> None:
    path = tmp_path / "log"
    append_text(path, "one\n")
    no_room()
    with pytest.raises(InputError, match="log cannot be written: the disk is full"):
        append_text(path, "two\n")
    assert path.read_text() == "one\n"


def test_writers_do_not_mix_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("torn")  # every writer would delete it
    code = "for step in range(40): append_text(path, sys.argv[2] * 5000 + f' {step}\\n')"
    writers = [start(code, path, letter) for letter in "abcd"]
    assert [w.wait() for w in writers] == [0] * 4
    lines = path.read_text().splitlines()
    for letter in "abcd":
        assert [line for line in lines if line[0] == letter] == [f"{letter * 5000} {step}" for step in range(40)]
    assert len(lines) == 160


def test_a_writer_waits_and_finds_the_new_file(tmp_path: Path) -> None:
    """A file replaced under a waiting writer is not written to: its line would be lost."""
    path = tmp_path / "log"
    append_text(path, "one\ntwo\n")
    with lock_for_writing(path):
        waiting = threading.Thread(target=append_text, args=(path, "three\n"))
        waiting.start()
        time.sleep(0.2)
        assert path.read_text() == "one\ntwo\n"
        replace_text(path, "one\n")
    waiting.join(10)
    assert path.read_text() == "one\nthree\n"


def test_a_killed_process_holds_no_lock(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    holder = start("with hold_lock(path): print('held', flush=True); time.sleep(60)", path)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(Busy, match=r"another process holds .*/\.lock: wait"), hold_lock(path):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with hold_lock(path):
        pass


def test_patience_outlasts_the_holder(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    holder = start("with hold_lock(path): print('held', flush=True); time.sleep(0.5)", path)
    assert holder.stdout is not None
    holder.stdout.readline()
    with pytest.raises(Busy), hold_lock(path, patience=0.05):
        pass
    with hold_lock(path, patience=20):
        assert holder.wait(5) == 0


def test_the_lock_is_released_after_an_error(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(KeyError), hold_lock(tmp_path / ".lock"):
            raise KeyError


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL])
def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def flock(file: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    for patience in (0, 60):
        message = rf"file system of .*/\.lock has no file locks \({os.strerror(number)}\)"
        with pytest.raises(CannotLock, match=message), hold_lock(tmp_path / ".lock", patience):
            pass
    with pytest.raises(CannotLock):
        append_text(tmp_path / "log", "line\n")


def test_a_new_file_has_the_permissions_of_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "file"
    umask = os.umask(0o027)
    try:
        with complete(path) as temporary:
            temporary.write_text("x")
            temporary.chmod(0o600)  # as safetensors does
    finally:
        os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("write", [replace_text, append_text])
def test_links_and_devices_are_not_written_to(tmp_path: Path, write: Callable[[Path, str], None]) -> None:
    (tmp_path / "real").write_text("precious\n")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "dangling", "fifo"):
        with pytest.raises(InputError, match=name):
            write(tmp_path / name, "x\n")
    with pytest.raises(InputError, match="device"):
        write(Path("/dev/null"), "x\n")
    assert (tmp_path / "real").read_text() == "precious\n"
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("text", "Größe,1\n".encode(), b"\xff\xd8\xff\xe0JFIF"),
        ("text", ("é" * 3000).encode(), b"P2 2 2 255 0 0 0 0"),
        ("tensors", b"12345678{}", b"file,label"),
        ("zip", b"PK\x03\x04", b"file,label"),
        ("onnx", b"\x08\x08", b"\x89PNG"),
        ("figure", b"\x89PNG\r\nMatplotlib version", b"\x89PNG\r\n"),
    ],
)
def test_a_file_of_another_kind_is_not_replaced(tmp_path: Path, kind: files.Kind, good: bytes, bad: bytes) -> None:
    path = tmp_path / "file"
    for content, replaced in ((good, True), (b"", True), (bad, False)):
        path.write_bytes(content)
        if replaced:
            with complete(path, kind) as temporary:
                temporary.write_text("new")
            assert path.read_text() == "new"
        else:
            with pytest.raises(InputError, match="is not replaced"), complete(path, kind):
                pass
            assert path.read_bytes() == content


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    for error in (OSError(errno.ENOSPC, "full"), RuntimeError("I/O error: No space left on device (os error 28)")):
        told = "weights cannot be written: the disk is full"
        with pytest.raises(InputError, match=told), complete(tmp_path / "weights"):
            raise error
    assert not list(tmp_path.iterdir())
