"""A job: one trial from end to end, trained once and adapted many times. What is done is found again."""

import os
import socket
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from itta import records
from itta.adapters import Adapter, adapt
from itta.algorithms import Algorithm
from itta.data import load_dataset
from itta.data.dataset import DomainDataset, Split, split, target_indices
from itta.errors import InputError
from itta.records import Record, replace_text
from itta.records.values import hashable, without_counts
from itta.run.directory import alone, claim
from itta.run.evaluate import Outcome, evaluate
from itta.run.train import selected_model, train
from itta.seeds import derive_seed, seed_all
from itta.store.model import load, read_description
from itta.sweep.plan import Adaptation
from itta.sweep.standings import State, read_state, write_state
from itta.trial import Trial

SPEAK_EVERY = 2.0  # seconds between two words of a running trial
Report = Callable[[int], None]  # steps done


@dataclass(frozen=True)
class Job:
    trial: Trial
    out: Path
    data: str = ""  # where the images are on this machine, if not where the trial says
    adaptation: Adaptation = field(default_factory=Adaptation)
    eval_every: int = 300
    threads: int = 1
    patience: float = 0.0  # seconds to wait for a process that is still at the same trial


class Ending(NamedTuple):
    """How an attempt ended: what crashed is worth another one."""

    kind: Literal["done", "mistake", "crashed", "died"]  # died: it has had its other attempts
    reason: str = ""


def attempt(job: Job, report: Report = lambda step: None) -> Ending:
    """Do a job, and tell how it ended instead of raising."""
    try:
        perform(job, report)
    except InputError as error:
        return Ending("mistake", str(error))
    except KeyboardInterrupt:
        return Ending("crashed", "it was stopped")
    except Exception as error:
        if (job.out / "trial.json").is_file():
            replace_text(job.out / "error.txt", traceback.format_exc())
        return Ending("crashed", f"{type(error).__name__}: {error}")
    return Ending("done")


def perform(job: Job, report: Report = lambda step: None) -> None:
    """Train, unless a finished model is there; then run every adapter that has no record yet."""
    torch.set_num_threads(job.threads)
    with alone(job.out, job.patience):
        claim(job.out, job.trial)
        diary = Diary(job.out)
        try:
            trial = job.trial
            dataset = load_dataset(job.data or trial.dataset, image_size=trial.image_size, strict=trial.strict)
            if not (job.out / "model.json").is_file():
                train_job(job, dataset, diary, report)
            adapt_job(job, dataset, diary)
        except InputError as error:
            diary.write(word="failed", reason=str(error))
            raise
        diary.write(word="done", doing="", step=job.trial.steps)


class Diary:
    """Keeps a trial's state on the disk, so that others can see how it stands."""

    def __init__(self, out: Path) -> None:
        before = read_state(out)
        self.out, self.written = out, 0.0
        self.state = replace(
            before or State("running"),
            word="running",
            reason="",
            attempts=before.attempts + 1 if before else 1,
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        self.write()

    def write(self, **changes: Any) -> None:
        self.state = replace(self.state, time=time.time(), **changes)
        self.written = time.monotonic()
        write_state(self.out, self.state)

    def write_sometimes(self, **changes: Any) -> None:
        if time.monotonic() - self.written >= SPEAK_EVERY:
            self.write(**changes)


def mark_failed(job: Job, reason: str) -> None:
    """Write down, for a process that no longer can, why its trial was given up."""
    if (job.out / "trial.json").is_file():
        write_state(job.out, replace(read_state(job.out) or State("failed"), word="failed", reason=reason))


def train_job(job: Job, dataset: DomainDataset, diary: Diary, report: Report) -> None:
    before, start = diary.state.train_seconds, time.monotonic()

    def tell(step: int, logs: dict[str, float]) -> None:
        diary.write_sometimes(step=step, doing="training", train_seconds=before + time.monotonic() - start)
        report(step)

    train(job.trial, job.out, dataset, eval_every=job.eval_every, report=tell, locked=True)
    diary.write(step=job.trial.steps, train_seconds=before + time.monotonic() - start)


def adapt_job(job: Job, dataset: DomainDataset, diary: Diary) -> None:
    """Every adapter on the checkpoints asked for; the model as trained has been measured in training."""
    asked = job.adaptation
    missing = {label: name for label, name in asked.labels.items() if label not in diary.state.adapted}
    models = {folder: load(folder) for folder in folders(job)} if set(missing.values()) - {"source"} else {}
    splits = split(dataset, job.trial.trial_seed)
    for label, name in missing.items():
        diary.write(doing=f"adapting: {name}")
        start = time.monotonic()
        note: float | str
        try:
            for folder, model in models.items() if name != "source" else ():
                adapt_model(job, folder, model, name, dataset, splits)
            note = time.monotonic() - start
        except InputError as error:  # not for such a model: the others may be
            note = str(error)
        diary.write(adapted={**diary.state.adapted, label: note})


def folders(job: Job) -> list[Path]:
    best, last = selected_model(job.out), job.out
    return {"best": [best], "last": [last], "both": list(dict.fromkeys([best, last]))}[job.adaptation.at]


def adapt_model(
    job: Job, folder: Path, model: Algorithm, name: str, dataset: DomainDataset, splits: Mapping[str, Split]
) -> None:
    """One adapter along every target of the trial, each from a fresh start; one record."""
    trial, size = job.trial, job.adaptation.batch_size
    seed_all(derive_seed(trial.seed, "adapt", name))  # the same whatever this process did before
    adapter = adapt(model, name, **job.adaptation.settings.get(name, {}))
    stream = {"order": "iid", "batch_size": size, "seed": trial.trial_seed}
    step = read_description(folder)["about"]["steps"]
    if is_recorded(job.out / "records.jsonl", adapter, step, stream):
        return
    accuracy, calibration, interventions = {}, {}, Counter[str]()
    for domain in trial.test_domains:
        indices = target_indices(dataset, domain, trial.trial_seed)
        outcome = evaluate(adapter, dataset.domain(domain), indices, size, trial.trial_seed)
        accuracy[domain], calibration[domain] = by_split(outcome, splits[domain])
        interventions.update(adapter.describe().get("interventions", {}))
    settings = adapter.describe()
    if "interventions" in settings:
        settings["interventions"] = dict(interventions)
    record = Record(
        trial,
        step,
        adapter.name,
        accuracy,
        model.describe(),
        settings,
        calibration=calibration,
        needs={**asdict(adapter.needs), "predicts": adapter.predicts},
        stream=stream,
    )
    records.append(job.out / "records.jsonl", record)


def is_recorded(path: Path, adapter: Adapter, step: int, stream: Mapping[str, Any]) -> bool:
    """Whether the record was written before the process could note so."""
    wanted = hashable(without_counts(adapter.describe()))
    return any(
        (r.adapter, r.step, r.stream) == (adapter.name, step, stream)
        and hashable(without_counts(r.adapter_hparams)) == wanted
        for r in records.read(path)
    )


def by_split(outcome: Outcome, cut: Split) -> tuple[dict[str, float], dict[str, float]]:
    """Accuracy and calibration error of a stream, over all of it and over its images of each split."""
    everything = np.ones(len(outcome.indices), dtype=bool)
    parts = {"in": np.isin(outcome.indices, cut.train), "out": np.isin(outcome.indices, cut.held_out)}
    found = {name: outcome.part(part) for name, part in {**parts, "all": everything}.items() if part.any()}
    return {name: o.accuracy for name, o in found.items()}, {name: o.calibration_error for name, o in found.items()}
