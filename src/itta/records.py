"""Records: what was measured, one JSON object per line, only ever appended."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from itta.trial import Trial

SCHEMA = 1


@dataclass(frozen=True)
class Record:
    trial: Trial
    step: int
    adapter: str  # "source": the model as trained
    accuracy: Mapping[str, Mapping[str, float]]  # domain -> split ("in", "out", "all") -> share of right answers
    hparams: Mapping[str, Any] = field(default_factory=dict)
    adapter_hparams: Mapping[str, Any] = field(default_factory=dict)
    logs: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA} | asdict(self) | {"trial": self.trial.to_json()}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Record":
        rest = {k: v for k, v in values.items() if k not in ("schema", "trial")}
        return Record(trial=Trial.from_json(values["trial"]), **rest)


def append(path: Path, record: Record) -> None:
    append_lines(path, [record.to_json()])


def append_lines(path: Path, values: Sequence[Mapping[str, Any]]) -> None:
    """Add a line each and see them onto the disk; one write, so that writers do not mix their lines.

    What a crash left of an earlier line is cut off first, or the two would run together.
    """
    text = "".join(json.dumps(v) + "\n" for v in values)
    cut_torn_line(path)
    with open(path, "ab") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def cut_torn_line(path: Path) -> None:
    """Drop a last line without an end; looks at the last byte only, unless there is something to cut."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with open(path, "rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read() != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)


def read(path: Path) -> Iterator[Record]:
    """Yield the records; a last line torn by a crash is left out."""
    return map(Record.from_json, read_lines(path))


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


def keep_until(path: Path, step: int) -> None:
    """Drop the lines of later steps, and a torn one, before a run goes on from that step."""
    if not path.exists():
        return
    kept = [json.dumps(v) + "\n" for v in read_lines(path) if v["step"] <= step]
    replace_text(path, "".join(kept))


def replace_text(path: Path, text: str) -> None:
    """Write a whole file at once: a reader, or a crash, sees the old one or the new one."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
