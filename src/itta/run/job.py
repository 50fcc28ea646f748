"""A job: one trial from end to end, trained once and adapted many times. Finished parts are not done again."""

import os
import socket
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import psutil
import torch

from itta import records
from itta.adapters import Adapter, adapt
from itta.algorithms import Algorithm
from itta.data import open_data
from itta.data.dataset import DomainDataset, Split, split, target_indices
from itta.data.streams import draw_order
from itta.errors import InputError
from itta.files import replace_text
from itta.metrics.outcome import Outcome
from itta.nn.device import describe_device, device_of, place, resolve_device
from itta.progress import ReportProgress, silent
from itta.records import RECORDS, Record
from itta.records.values import hashable, without_counts
from itta.run.directory import TRIAL, alone, claim
from itta.run.evaluate import evaluate
from itta.run.source_data import without_stand_ins
from itta.run.status import State, read_state, write_state
from itta.run.train import CHECKPOINT, selected_model, train_in
from itta.seeds import derive_seed, seed_all
from itta.settings import Adaptation, DataAccess, RunSettings
from itta.store.model import Description, OwnCode, is_model, load_algorithm, read_description
from itta.trial import Trial

WRITE_EVERY = 2.0  # seconds between two states of a running trial


@dataclass(frozen=True)
class Job:
    trial: Trial
    out: Path
    data: str = ""  # where the images are on this machine, if not at the trial's own path
    adaptation: Adaptation = field(default_factory=Adaptation)
    eval_every: int = 300
    threads: int = 1
    patience: float = 0.0  # seconds to wait for a process that still works on the same trial
    access: DataAccess = DataAccess()
    keep_checkpoint: bool = False  # of a finished training: three times the size of its model
    device: str = "auto"
    gpus: float = 0.0  # reserved for the job by the engine
    stand_ins: bool = False  # measure stand-in targets, from which accuracy is estimated without labels


class Ending(NamedTuple):
    """How an attempt ended; one that crashed is worth another attempt."""

    kind: Literal["done", "mistake", "crashed", "died", "missing"]
    # died: all its attempts are used up; missing: it ended well, and its model is not here
    reason: str = ""


def attempt(job: Job, report: ReportProgress = silent) -> Ending:
    """Do a job, and return how it ended instead of raising."""
    try:
        perform(job, report)
    except InputError as error:
        return Ending("mistake", str(error))
    except KeyboardInterrupt:
        return Ending("crashed", "it was stopped")
    except Exception as error:
        if (job.out / TRIAL).is_file():
            replace_text(job.out / "error.txt", traceback.format_exc())
        return Ending("crashed", f"{type(error).__name__}: {error}")
    return Ending("done")


def perform(job: Job, report: ReportProgress = silent) -> None:
    """Train, unless a finished model is there; then run every adapter that has no record yet."""
    torch.set_num_threads(job.threads)
    with alone(job.out, job.patience):
        job = replace(job, trial=claim(job.out, job.trial))
        diary = Diary(job.out)
        try:
            check_assigned(job)
            dataset = open_data(job.trial, job.access, job.data)
            if not is_model(job.out):
                with without_stand_ins(not job.stand_ins):
                    train_job(job, dataset, diary, report)
            if not job.keep_checkpoint:
                (job.out / CHECKPOINT).unlink(missing_ok=True)
            adapt_job(job, dataset, diary)
        except InputError as error:
            diary.write(word="failed", reason=str(error))
            raise
        diary.write(word="done", doing="", step=job.trial.steps)


def check_assigned(job: Job) -> None:
    """Refuse to compute on the CPU while a GPU is reserved: it would stay idle."""
    if job.gpus > 0 and resolve_device(job.device).type == "cpu":
        given = os.environ.get("CUDA_VISIBLE_DEVICES")
        seen = "no CUDA_VISIBLE_DEVICES" if given is None else f"CUDA_VISIBLE_DEVICES={given}"
        raise InputError(
            f"{job.gpus:g} GPUs are reserved for each trial ({seen}), and torch {torch.__version__} on "
            f"{socket.gethostname()} uses none: install a CUDA build of torch there, or leave out --gpus."
        )


class Diary:
    """Keeps the state of a trial on disk, so that other processes can see it."""

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
            started=psutil.Process().create_time(),
        )
        self.write()

    def write(self, **changes: Any) -> None:
        self.state = replace(self.state, time=time.time(), **changes)
        self.written = time.monotonic()
        write_state(self.out, self.state)

    def write_sometimes(self, **changes: Any) -> None:
        if time.monotonic() - self.written >= WRITE_EVERY:
            self.write(**changes)


def mark_failed(job: Job, reason: str) -> None:
    """Write into the state of a dead process why its trial was given up."""
    if (job.out / TRIAL).is_file():
        write_state(job.out, replace(read_state(job.out) or State("failed"), word="failed", reason=reason))


def train_job(job: Job, dataset: DomainDataset, diary: Diary, report: ReportProgress) -> None:
    """Train the model of a job, and keep its state up to date."""
    before, start = diary.state.train_seconds, time.monotonic()

    def note(name: str, step: int, steps: int) -> None:
        diary.write_sometimes(step=step, doing="training", train_seconds=before + time.monotonic() - start)
        report(name, step, steps)

    train_in(job.trial, job.out, dataset, RunSettings(eval_every=job.eval_every, device=job.device), note)
    diary.write(step=job.trial.steps, train_seconds=before + time.monotonic() - start)


def adapt_job(job: Job, dataset: DomainDataset, diary: Diary) -> None:
    """Run every adapter on the wanted checkpoints; the model as trained was measured in training."""
    asked = job.adaptation
    missing = {label: pair for label, pair in asked.labels.items() if label not in diary.state.adapted}
    found = [read_description(f) for f in folders(job)] if {name for name, _ in missing.values()} - {"source"} else []
    # the trial comes from the user's command, so its own code may be imported
    own = OwnCode(job.trial.algorithm, job.trial.backbone)
    models = [(d, place(load_algorithm(d, own), job.device, job.trial.precision)) for d in found]
    for label, (name, order) in missing.items():
        diary.write(doing=f"adapting: {name}")
        start = time.monotonic()
        note: float | str
        try:
            for description, model in models if name != "source" else ():
                adapt_model(job, description, make_adapter(job, model, name), dataset, order)
            note = time.monotonic() - start
        except InputError as error:  # this adapter does not fit the model; others may
            note = str(error)
        diary.write(adapted={**diary.state.adapted, label: note})


def folders(job: Job) -> list[Path]:
    """Return the directories of the checkpoints to adapt."""
    best, last = selected_model(job.out), job.out
    return {"best": [best], "last": [last], "both": list(dict.fromkeys([best, last]))}[job.adaptation.at]


def make_adapter(job: Job, model: Algorithm, name: str) -> Adapter:
    """Make an adapter, seeded so that it is the same whatever this process did before."""
    seed_all(derive_seed(job.trial.seed, "adapt", name))
    return adapt(model, name, **job.adaptation.settings.get(name, {}))


def adapt_model(job: Job, description: Description, adapter: Adapter, dataset: DomainDataset, order: str) -> None:
    """Run one adapter along every target of the trial, each from a fresh start; write one record."""
    trial, size = job.trial, job.adaptation.batch_size
    splits = split(dataset, trial.trial_seed)
    stream = {"order": order, "batch_size": size, "seed": trial.trial_seed}
    if is_recorded(job.out / RECORDS, adapter, description.steps, stream):
        return
    accuracy, calibration, interventions = {}, {}, Counter[str]()
    for domain in trial.test_domains:
        indices = target_indices(dataset, domain, trial.trial_seed)
        shuffle: int | None = trial.trial_seed
        if order != "iid":
            labels = {domain: dataset.domain(domain).labels[indices]}
            indices, shuffle = indices[draw_order(labels, order, seed=trial.trial_seed).index], None
        outcome = evaluate(adapter, dataset.domain(domain), indices, size, shuffle)
        accuracy[domain], calibration[domain] = by_split(outcome, splits[domain])
        interventions.update(adapter.describe().get("interventions", {}))
    settings = adapter.describe()
    if "interventions" in settings:
        settings["interventions"] = dict(interventions)
    record = Record(
        trial,
        description.steps,
        adapter.name,
        accuracy,
        description.hparams,
        settings,
        calibration=calibration,
        needs={**asdict(adapter.needs), "predicts": adapter.predicts},
        stream=stream,
        device=describe_device(device_of(adapter.model)),
        precision=trial.precision,
    )
    records.append(job.out / RECORDS, record)


def is_recorded(path: Path, adapter: Adapter, step: int, stream: Mapping[str, Any]) -> bool:
    """Tell whether the record is there already: a process may die between the record and its note of it."""
    wanted = hashable(without_counts(adapter.describe()))
    return any(
        (r.adapter, r.step, r.stream) == (adapter.name, step, stream)
        and hashable(without_counts(r.adapter_hparams)) == wanted
        for r in records.read(path)
    )


def by_split(outcome: Outcome, cut: Split) -> tuple[dict[str, float], dict[str, float]]:
    """Return accuracy and calibration error of a stream, over all of it and over its images of each split."""
    everything = np.ones(len(outcome.indices), dtype=bool)
    parts = {"in": np.isin(outcome.indices, cut.train), "out": np.isin(outcome.indices, cut.held_out)}
    found = {name: outcome.part(part) for name, part in {**parts, "all": everything}.items() if part.any()}
    return {name: o.accuracy for name, o in found.items()}, {name: o.calibration_error for name, o in found.items()}
