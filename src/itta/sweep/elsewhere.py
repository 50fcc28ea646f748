"""Trials that ran elsewhere, for example on another machine: a sweep that has their records does not run them again.

An adapter that does not fit a model leaves no record. A sweep that asks for one runs the trial again to find that out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from itta.hparams import default, later_defaults
from itta.records import Record
from itta.records.collection import collect_records
from itta.records.values import has_settings
from itta.settings import Adaptation
from itta.trial import Trial

GUARDED = "guarded "  # before the name of an adapter that is guarded by default

Recorded = Mapping[str, Sequence[Record]]  # by the key of the trial


def read_elsewhere(paths: Sequence[str]) -> Recorded:
    """Read files of records, and folders that contain such files."""
    found: dict[str, list[Record]] = {}
    for record in collect_records([Path(p) for p in paths]).records if paths else ():
        found.setdefault(record.trial.key, []).append(record)
    return found


def is_done(trial: Trial, known: Recorded, adaptation: Adaptation) -> bool:
    """Tell whether the records hold the end of a trial's training, and everything that is asked of its model."""
    found = known.get(trial.key, ())
    trained = any(r.adapter == "source" and r.step == trial.steps for r in found)
    return trained and all(
        any(is_evaluation(r, adaptation, name, order) for r in found) for name, order in adaptation.labels.values()
    )


def is_evaluation(record: Record, adaptation: Adaptation, name: str, order: str) -> bool:
    """Tell whether a record is what is asked: the adapter, its settings, the order and the size of the batches."""
    if name == "source":
        return record.adapter == name
    from itta.adapters import find_adapter  # torch: a status without such records needs none

    stream = {"order": order, "batch_size": adaptation.batch_size}
    if record.adapter.removeprefix(GUARDED) != name or not has_settings(record.stream, stream):
        return False
    hparams = find_adapter(name).Hparams
    wanted = default(hparams, **adaptation.settings.get(name, {}))
    return has_settings({**later_defaults(hparams), **record.adapter_hparams}, asdict(wanted))
