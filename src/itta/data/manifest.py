"""A manifest: a file that lists images with their domain, class and path, for data that are not in folders.

It is a CSV file with the columns domain, class and file; a JSON list of objects with these fields; or one such object
per line (.jsonl). Paths are relative to the manifest. A target without labels needs no class.
"""

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from itta.data.images import IMAGE_SUFFIXES
from itta.errors import InputError
from itta.schema import damaged, parse_json, read_bytes

MANIFEST_SUFFIXES = (".csv", ".json", ".jsonl")
FIELDS = ("domain", "class", "file")
MAX_MANIFEST = 2**28  # bytes


@dataclass(frozen=True)
class Entry:
    """One image. `label` is empty if the manifest has none."""

    line: int
    domain: str
    label: str
    path: Path


def is_manifest(path: str | Path) -> bool:
    """Tell whether a path has the suffix of a manifest. The file need not exist."""
    return Path(path).suffix.lower() in MANIFEST_SUFFIXES and not Path(path).is_dir()


def read_manifest(path: str | Path) -> list[Entry]:
    """Read a manifest and check that its files exist. An error names the line of the mistake and what to do."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no manifest {path}: check the path.")
    read = {".csv": _csv_rows, ".json": _json_rows, ".jsonl": _jsonl_rows}[path.suffix.lower()]
    try:
        entries = [_entry(path, line, row) for line, row in read(path)]
    except (csv.Error, UnicodeError) as error:
        raise InputError(f"cannot read {path} ({error}): save it as UTF-8 {path.suffix.lower()[1:]}.") from error
    if not entries:
        raise InputError(f"{path} lists no images: expected entries with {', '.join(FIELDS)}.")
    _check_repeats(path, entries)
    return entries


def _csv_rows(path: Path) -> Iterator[tuple[int, Any]]:
    reader = csv.DictReader(io.StringIO(_text(path), newline=""), strict=True)
    names = reader.fieldnames or []
    missing = [name for name in ("domain", "file") if name not in names]
    if missing:
        raise InputError(
            f"{path}, line 1: expected a column {missing[0]!r}, got {', '.join(names) or 'none'}: "
            f"begin the file with the line {','.join(FIELDS)}."
        )
    for row in reader:
        if None in row or None in row.values():
            raise InputError(
                f"{path}, line {reader.line_num}: expected {len(names)} cells as in the first line: "
                "put text with a comma in quotes."
            )
        yield reader.line_num, row


def _json_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Decode the list piece by piece, to know the line of each piece."""
    text = _text(path)
    try:
        whole = parse_json(text)
    except InputError as error:
        raise InputError(f"{path}: {_with_line(text) or error}: fix that line.") from error
    if not isinstance(whole, list):
        raise InputError(f"{path} holds {_kind(whole)}: expected a list of objects with {', '.join(FIELDS)}.")
    decoder, position, line = json.JSONDecoder(), text.index("[") + 1, 1
    counted = 0
    for row in whole:
        while text[position] in " \t\r\n,":
            position += 1
        line += text.count("\n", counted, position)
        counted = position
        yield line, row
        _, position = decoder.raw_decode(text, position)


def _with_line(text: str) -> str:
    """Say what is wrong with JSON and in which line, in the words of Python's own parser."""
    try:
        json.loads(text)
    except ValueError as error:
        return f"not JSON ({error})"
    except RecursionError:
        pass
    return ""


def _text(path: Path) -> str:
    with damaged(path, "split it into several"):
        return read_bytes(path, MAX_MANIFEST).decode("utf-8-sig")


def _jsonl_rows(path: Path) -> Iterator[tuple[int, Any]]:
    for line, text in enumerate(_text(path).splitlines(), start=1):
        if text.strip():
            try:
                row = parse_json(text)
            except InputError as error:
                raise InputError(f"{path}, line {line}: {error}: fix that line.") from error
            yield line, row


def _entry(path: Path, line: int, row: Any) -> Entry:
    where = f"{path}, line {line}"
    if not isinstance(row, dict):
        raise InputError(f"{where}: got {_kind(row)}, expected an object with {', '.join(FIELDS)}.")
    domain, label, file = (row.get(name, "") for name in FIELDS)
    for name, value in zip(FIELDS, (domain, label, file)):
        if not isinstance(value, str):
            raise InputError(f"{where}: {name} is {_kind(value)}: write it as text, in quotes.")
    domain, label, file = domain.strip(), label.strip(), file.strip()
    for name, value in (("domain", domain), ("file", file)):
        if not value:
            raise InputError(f"{where}: no {name}: fill it in, or delete the line.")
    image = path.parent / file
    if image.suffix.lower() not in IMAGE_SUFFIXES:
        raise InputError(f"{where}: {file} is not an image file: expected {', '.join(IMAGE_SUFFIXES)}.")
    if not _is_file(image):
        raise InputError(f"{where}: there is no file {image}: write the path relative to the manifest's folder.")
    return Entry(line, domain, label, image)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False


def _check_repeats(path: Path, entries: list[Entry]) -> None:
    seen: dict[tuple[str, Path], Entry] = {}
    for entry in entries:
        first = seen.setdefault((entry.domain, entry.path), entry)
        if first is not entry:
            raise InputError(
                f"{path}, line {entry.line}: {entry.path.name} is already in domain {entry.domain!r}, "
                f"in line {first.line}: delete one of the two lines."
            )


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "text", int: "a number", float: "a number", type(None): "nothing"}
    return kinds.get(type(value), repr(value))
