"""Shared by the tests of downloads: a local server that can misbehave, and archives made by the test."""

import io
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from PIL import Image


class Server:
    """A server of files by name. `drop` ends the next answers after these numbers of bytes; `pages` sends web pages."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.drop: list[int] = []
        self.statuses: list[int] = []  # sent first, one per request
        self.pages: dict[str, str] = {}  # name -> content type of the page sent instead
        self.ranges = True
        self.etag: str | None = '"1"'
        self.requests: list[tuple[str, str | None]] = []  # name, range
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self)

            def log_message(self, *args: object) -> None:
                """Keep the tests' output clean."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        name, wanted = handler.path.lstrip("/"), handler.headers.get("Range")
        self.requests.append((name, wanted))
        if self.statuses:
            handler.send_error(self.statuses.pop(0))
            return
        if name in self.pages:
            body = b"  <!DOCTYPE html><html>Too many users have viewed this file</html>"
            self.send(handler, 200, body, {"Content-Type": self.pages[name]})
            return
        if name not in self.files:
            handler.send_error(404)
            return
        body, headers = self.files[name], {"Content-Type": "application/octet-stream"}
        if self.etag:
            headers["ETag"] = self.etag
        if wanted and self.ranges and handler.headers.get("If-Range") in (None, self.etag):
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(body):
                handler.send_error(416)
                return
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
            self.send(handler, 206, body[start:], headers)
        else:
            self.send(handler, 200, body, headers)

    def send(self, handler: BaseHTTPRequestHandler, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        handler.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        cut = self.drop.pop(0) if self.drop else len(body)
        handler.wfile.write(body[:cut])  # fewer than promised, and the connection ends


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


def image_bytes(shade: int = 0, suffix: str = "JPEG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (6, 6), (shade % 256, 0, 0)).save(file, suffix)
    return file.getvalue()


@pytest.fixture
def picture() -> Callable[..., bytes]:
    return image_bytes


def zip_of(files: Mapping[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return file.getvalue()


def tar_of(files: Mapping[str, bytes], mode: str = "w:gz") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return file.getvalue()


@pytest.fixture
def archive_of() -> Callable[..., bytes]:
    """(kind, files) -> the bytes of a zip, a tar or a tar.gz."""

    def make(kind: str, files: Mapping[str, bytes]) -> bytes:
        return zip_of(files) if kind == "zip" else tar_of(files, "w:gz" if kind == "tar.gz" else "w")

    return make


@pytest.fixture
def pacs(picture: Callable[..., bytes]) -> dict[str, bytes]:
    """A small PACS, with the paths of its archive."""
    domains, classes = ("art_painting", "cartoon", "photo", "sketch"), ("dog", "elephant", "giraffe", "guitar", "horse")
    labels = (*classes, "house", "person")
    return {f"kfold/{d}/{c}/{i}.jpg": picture(i) for d in domains for c in labels for i in range(2)}


@pytest.fixture
def tree() -> Callable[[Path], set[str]]:
    def files(root: Path) -> set[str]:
        """All files but locks and the lists of contents."""
        found = {p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file() and p.suffix != ".lock"}
        return {name for name in found if not name.endswith(".contents.json")}

    return files
