"""Records from files and folders, and what is worth knowing about them."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from itta.errors import InputError
from itta.records import Record, merge, read
from itta.trial import Trial


@dataclass(frozen=True)
class Gathered:
    records: list[Record]
    notes: Counter[str] = field(default_factory=Counter)
    started: list[Trial] = field(default_factory=list)  # trials that have a folder and no record


def gather(paths: Sequence[Path], where: Mapping[str, str] | None = None, needed: bool = True) -> Gathered:
    """Read files of records, and every records.jsonl in folders; models that `itta tune` trained are left out.

    ``where`` keeps the records that agree with it: fields of the trial by name, settings as hparams.NAME and
    adapter.NAME. ``needed`` refuses to find nothing.
    """
    found: list[Record] = []
    notes: Counter[str] = Counter()
    started: list[Trial] = []
    for path in paths:
        files = [path] if path.is_file() else sorted(f for f in path.rglob("records.jsonl") if not in_tuning(f, path))
        for file in files:
            damaged: list[int] = []
            found += read(file, damaged)
            if damaged:
                notes[f"damaged lines of {file}, skipped"] += len(damaged)
        if path.is_dir():
            started += [
                t for f in sorted(path.rglob("trial.json")) if not in_tuning(f, path) for t in without_record(f)
            ]
    if needed and not found and not started:
        raise InputError(
            f"no records in {', '.join(map(str, paths))}: expected records.jsonl, or folders that have one."
        )
    kept = [r for r in merge(found) if agrees(r, where or {})]
    if where and not kept and (found or needed):
        raise InputError(
            f"none of {len(found)} records agrees with --where {' '.join(f'{k}={v}' for k, v in where.items())}."
        )
    return Gathered(kept, notes, started)


def in_tuning(file: Path, root: Path) -> bool:
    return "tune" in file.relative_to(root).parts[:-2]


def without_record(file: Path) -> list[Trial]:
    """The trial of a run's folder, if it has nothing to show yet."""
    records = file.parent / "records.jsonl"
    if records.is_file() and records.stat().st_size:
        return []
    try:
        return [Trial.from_json(json.loads(file.read_text(encoding="utf-8")))]
    except (ValueError, TypeError, KeyError):
        return []  # not ours


def agrees(r: Record, where: Mapping[str, str]) -> bool:
    """Whether a record has the values asked for; an adapter's settings are asked of adapters only."""
    return all(shown(value_of(r, name)) == value for name, value in where.items() if applies(r, name))


def applies(r: Record, name: str) -> bool:
    return r.adapter != "source" if name.startswith("adapter.") else True


def value_of(r: Record, name: str) -> Any:
    room, dot, key = name.partition(".")
    if dot:
        settings = {"hparams": r.hparams, "adapter": r.adapter_hparams}.get(room, {})
        return settings.get(key)
    if not hasattr(r.trial, name):
        raise InputError(
            f"a trial has no {name!r}: choose one of {', '.join(r.trial.to_json())}, hparams.… or adapter.…"
        )
    return getattr(r.trial, name)


def shown(value: Any) -> str:
    """A value as it is written on a command line.

    >>> shown(1e-4), shown(("a", "b")), shown(True), shown(5001)
    ('0.0001', 'a,b', 'true', '5001')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return ",".join(map(shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
