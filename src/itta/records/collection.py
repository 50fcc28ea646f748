"""A collection of records, read from files and folders."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from itta.errors import InputError
from itta.files import walk_files
from itta.records import RECORDS, Record, merge, read
from itta.records.values import as_written
from itta.schema import read_json
from itta.trial import Trial

TRIAL_FILE = "trial.json"  # in a run's folder


@dataclass(frozen=True)
class Collection:
    records: list[Record]
    notes: Counter[str] = field(default_factory=Counter)  # remarks on the files, and how often each applies
    started: list[Trial] = field(default_factory=list)  # trials that have a folder and no record


def collect_records(paths: Sequence[Path], where: Mapping[str, str] | None = None, needed: bool = True) -> Collection:
    """Read files of records, and every records.jsonl in folders. Models that `itta tune` trained are skipped.

    ``where`` keeps the records with these values: fields of the trial by name, settings as hparams.NAME,
    adapter.NAME and stream.NAME, measured.device and measured.precision. If ``needed``, it is an error to find none.
    """
    found: list[Record] = []
    notes: Counter[str] = Counter()
    started: list[Trial] = []
    for path in paths:
        for file in [path] if path.is_file() else files_of_runs(path, RECORDS):
            damaged: list[int] = []
            found += read(file, damaged)
            if damaged:
                notes[f"damaged lines of {file}, skipped"] += len(damaged)
        started += [t for file in files_of_runs(path, TRIAL_FILE) if (t := trial_without_record(file.parent))]
    if needed and not found and not started:
        unusable = "".join(f" There are {count} {note}." for note, count in notes.items())
        raise InputError(
            f"no records in {', '.join(map(str, paths))}: expected {RECORDS}, or folders that have one.{unusable}"
        )
    kept = [r for r in merge(found) if matches(r, where or {})]
    if where and not kept and (found or needed):
        raise InputError(
            f"none of {len(found)} records agrees with --where {' '.join(f'{k}={v}' for k, v in where.items())}."
        )
    return Collection(kept, notes, started)


def in_order(records: Sequence[Record]) -> list[Record]:
    """Sort records by data, method, domains, seeds, step and adapter, so that the same runs give the same file."""

    def place(r: Record) -> tuple[Any, ...]:
        t = r.trial
        seeds = t.trial_seed, t.hparams_seed
        return t.dataset, t.algorithm, t.train_domains, t.test_domains, seeds, t.key, r.step, r.adapter, str(r.stream)

    return sorted(records, key=place)


def files_of_runs(root: Path, name: str) -> list[Path]:
    """The files of a name under a folder, without those of models that `itta tune` trained."""
    found = (f for f in walk_files(root) if f.name == name) if root.is_dir() else ()
    return sorted(f for f in found if "tune" not in f.relative_to(root).parts[:-2])


def trial_of_folder(folder: Path) -> Trial | None:
    """The trial of a run's folder; None if the folder is not a run's."""
    try:
        return Trial.from_json(read_json(folder / TRIAL_FILE))
    except (OSError, InputError):
        return None


def trial_without_record(folder: Path) -> Trial | None:
    """The trial of a run's folder that has no record yet."""
    records = folder / RECORDS
    return None if records.is_file() and records.stat().st_size else trial_of_folder(folder)


def matches(r: Record, where: Mapping[str, str]) -> bool:
    """Whether a record has these values. Conditions on adapter, stream and device do not apply to models as trained."""
    as_trained = r.adapter == "source"
    return all(
        as_written(value_of(r, name)) == value
        for name, value in where.items()
        if not (as_trained and name.startswith(("adapter.", "stream.", "measured.")))
    )


def value_of(r: Record, name: str) -> Any:
    kind, dot, key = name.partition(".")
    measured = {"device": r.device, "precision": r.precision}
    settings = {"hparams": r.hparams, "adapter": r.adapter_hparams, "stream": r.stream, "measured": measured}
    if dot and kind in settings:
        return settings[kind].get(key)
    if not hasattr(r.trial, name):
        raise InputError(
            f"a trial has no {name!r}: choose one of {', '.join(r.trial.to_json())}, hparams.…, adapter.…, stream.… or "
            "measured.device."
        )
    return getattr(r.trial, name)
