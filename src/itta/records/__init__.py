"""Records: what was measured, one JSON object per line, only ever appended."""

import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from itta.errors import InputError
from itta.trial import Trial

SCHEMA = 2  # 2 added calibration, needs and stream; records of schema 1 are read as having none


@dataclass(frozen=True)
class Record:
    trial: Trial
    step: int
    adapter: str  # "source": the model as trained
    accuracy: Mapping[str, Mapping[str, float]]  # domain -> split ("in", "out", "all") -> share of right answers
    hparams: Mapping[str, Any] = field(default_factory=dict)
    adapter_hparams: Mapping[str, Any] = field(default_factory=dict)
    logs: Mapping[str, float] = field(default_factory=dict)
    calibration: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # like accuracy: calibration error
    needs: Mapping[str, Any] = field(default_factory=dict)  # what the adapter asks for and changes
    stream: Mapping[str, Any] = field(default_factory=dict)  # how the images arrived

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA} | asdict(self) | {"trial": self.trial.to_json()}

    @staticmethod
    def from_json(values: Mapping[str, Any], trial: Trial | None = None) -> "Record":
        """Read a line's object; ``trial`` is its trial, where that has been read already."""
        if values.get("schema", 1) > SCHEMA:
            raise InputError(f"schema {values['schema']}, and this version reads up to {SCHEMA}: update itta.")
        rest = {k: v for k, v in values.items() if k not in ("schema", "trial")}
        return Record(trial=trial or Trial.from_json(values["trial"]), **rest)


def append(path: Path, record: Record) -> None:
    """Add a record and see it onto the disk."""
    append_lines(path, [record.to_json()])


def append_lines(path: Path, values: Sequence[Mapping[str, Any]]) -> None:
    """Add a line each and see them onto the disk; one write under a lock, so that writers do not mix their lines.

    What a crash left of an earlier line is cut off first, or the two would run together.
    """
    lines = "".join(json.dumps(v) + "\n" for v in values).encode()
    with locked(path) as file:
        cut_torn_line(file)
        size = os.lseek(file, 0, os.SEEK_END)
        if os.write(file, lines) < len(lines):
            os.ftruncate(file, size)
            raise OSError(f"no room to append to {path}")
        os.fsync(file)


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Open a file to read and append, alone; the system lets go of it however the process ends."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            if lock(file) and not is_still(file, path):
                continue  # it was replaced while we waited
            yield file
            return
        finally:
            os.close(file)


def lock(file: int) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows has no such locks
        return False
    fcntl.flock(file, fcntl.LOCK_EX)
    return True


def is_still(file: int, path: Path) -> bool:
    """Whether an open file is the one found at a path."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def cut_torn_line(file: int) -> None:
    """Drop a last line without an end; looks at the last byte only, unless there is something to cut."""
    size = os.lseek(file, 0, os.SEEK_END)
    if size == 0:
        return
    os.lseek(file, -1, os.SEEK_END)
    if os.read(file, 1) != b"\n":
        os.lseek(file, 0, os.SEEK_SET)
        with os.fdopen(os.dup(file), "rb") as whole:
            os.ftruncate(file, whole.read().rfind(b"\n") + 1)


def read(path: Path, damaged: list[int] | None = None) -> Iterator[Record]:
    """Yield the records; a last line torn by a crash is left out.

    Any other line that is no JSON is skipped: its number goes to ``damaged``, or a warning counts them.
    """
    skipped: list[int] = [] if damaged is None else damaged
    last: tuple[Any, Trial | None] = (None, None)  # the lines of a run share one trial
    for number, values in numbered_lines(path):
        if values is None:
            skipped.append(number)
            continue
        try:
            record = Record.from_json(values, last[1] if last[0] == values["trial"] else None)
        except InputError as error:
            raise InputError(f"{path}, line {number}: {error}") from None
        except (TypeError, KeyError) as error:
            raise InputError(f"{path}, line {number} is not a record of this program ({error!r}).") from error
        last = values["trial"], record.trial
        yield record
    if skipped and damaged is None:
        warnings.warn(f"{path}: {len(skipped)} damaged lines were skipped", stacklevel=2)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of any file of lines, without what is torn or damaged."""
    return (values for _, values in numbered_lines(path) if values is not None)


def numbered_lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n"):
                yield number, parse(line)


def parse(line: bytes) -> dict[str, Any] | None:
    """The object in a line, or nothing if the line is damaged."""
    try:
        values = json.loads(line)
    except ValueError:
        return None
    return values if isinstance(values, dict) else None


def merge(records: Iterable[Record]) -> list[Record]:
    """One record for each trial, step, adapter, settings and stream, whenever its parts were measured.

    Where the same was measured twice, the later one counts.
    """
    merged: dict[tuple[str, int, str, str], Record] = {}
    for r in records:
        key = (r.trial.key, r.step, r.adapter, json.dumps([r.adapter_hparams, r.stream], sort_keys=True))
        merged[key] = joined(merged[key], r) if key in merged else r
    return list(merged.values())


def joined(a: Record, b: Record) -> Record:
    return replace(
        b,
        accuracy=by_domain(a.accuracy, b.accuracy),
        calibration=by_domain(a.calibration, b.calibration),
        hparams={**a.hparams, **b.hparams},
        logs={**a.logs, **b.logs},
    )


def by_domain(
    a: Mapping[str, Mapping[str, float]], b: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    return {domain: {**a.get(domain, {}), **b.get(domain, {})} for domain in dict.fromkeys([*a, *b])}


def keep_until(path: Path, step: int) -> None:
    """Drop the lines of later steps, and a torn one, before a run goes on from that step."""
    if not path.exists():
        return
    with locked(path):
        replace_lines(path, [json.dumps(v) + "\n" for v in read_lines(path) if v["step"] <= step])


def write_all(path: Path, records: Iterable[Record]) -> None:
    """Write a whole file of records at once."""
    replace_lines(path, (json.dumps(r.to_json()) + "\n" for r in records))


def replace_text(path: Path, text: str) -> None:
    """Write a whole file at once: a reader, or a crash, sees the old one or the new one."""
    replace_lines(path, [text])


def replace_lines(path: Path, lines: Iterable[str]) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
