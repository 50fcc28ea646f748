"""Train one trial: step, record, checkpoint; stop at any moment and go on to the identical result."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from itta import records
from itta.adapters import adapt
from itta.algorithms import Algorithm
from itta.data import check_unchanged, open_data
from itta.data.dataset import DomainDataset, Split, split, target_indices
from itta.data.loaders import TrainLoader, prefetch
from itta.errors import InputError
from itta.metrics.outcome import Outcome
from itta.metrics.selection import mean, split_of
from itta.nn.averaged_weights import AveragedWeights, using_weights
from itta.nn.device import describe_device, device_of, place, resolve_device
from itta.nn.learning_rate import learning_rate_factor, scale_learning_rate
from itta.progress import ReportProgress, silent
from itta.records import RECORDS, STEPS, Record
from itta.run.directory import alone, claim
from itta.run.evaluate import evaluate
from itta.run.interruption import Interrupted, interruptible
from itta.run.preparation import build, check_held_out, fit_head
from itta.run.source_data import collect_statistics
from itta.schema import Count, convert, damaged
from itta.seeds import derive_seed, seed_all
from itta.settings import RunSettings
from itta.store.checkpoint import TrainingProgress, load_checkpoint, save_checkpoint
from itta.store.model import Description, OwnCode, is_model, load_algorithm, read_description, save_model
from itta.store.tensors import check_finite_tensors, load_tensors, save_tensors
from itta.trial import Trial

CHECKPOINT_SECONDS = 60.0
BEST = "best.safetensors"  # weights of the best step so far
CHECKPOINT = "checkpoint.safetensors"


@dataclass
class Training:
    """The state that all steps of a training share."""

    trial: Trial
    out: Path
    dataset: DomainDataset
    splits: dict[str, Split]
    algorithm: Algorithm
    eval_every: int = 300
    progress: TrainingProgress = field(default_factory=TrainingProgress)
    records: list[Record] = field(default_factory=list)  # of the whole run, those before an interruption included
    average: AveragedWeights | None = None


@dataclass(frozen=True)
class TrainingResult:
    """The model of a training, its description and its records."""

    model: Algorithm
    description: Description
    records: tuple[Record, ...]

    @property
    def last(self) -> Record:
        """The record of the last step."""
        return self.records[-1]


def train(
    trial: Trial,
    out: Path,
    dataset: DomainDataset | None = None,
    settings: RunSettings = RunSettings(),
    report: ReportProgress = silent,
) -> TrainingResult:
    """Train into ``out``, from the checkpoint there if there is one; the trained model is also saved in ``out``.

    If an earlier step did better on the held-out images of the sources, the model of that step is kept in
    ``out/best``. A finished training is not repeated: its model is loaded.
    """
    dataset = open_data(trial) if dataset is None else dataset
    with alone(out):
        result = train_in(claim(out, trial), out, dataset, settings, report)
        if not settings.keep_checkpoint:
            (out / CHECKPOINT).unlink(missing_ok=True)  # three times the size of the model
    return result


def train_in(
    trial: Trial,
    out: Path,
    dataset: DomainDataset,
    settings: RunSettings = RunSettings(),
    report: ReportProgress = silent,
) -> TrainingResult:
    """Train in a directory that the caller has claimed and keeps other processes out of."""
    check_unchanged(trial, dataset)
    device = resolve_device(settings.device)
    if is_model(out):
        return finished(trial, out, device)
    with interruptible() as asked_to_stop:
        training = prepare(trial, out, dataset, settings.eval_every, device)
        restore(training)
        learn(training, report, asked_to_stop)
        if training.average is not None:
            training.algorithm.load_state_dict(training.average.tensors)
        if (out / BEST).is_file():
            with earlier_weights(training.algorithm, out / BEST) as step:
                save_with_statistics(out / "best", training, step)
        description = save_with_statistics(out, training, training.progress.step)
        (out / BEST).unlink(missing_ok=True)
    return TrainingResult(training.algorithm.eval(), description, tuple(training.records))


def finished(trial: Trial, out: Path, device: torch.device) -> TrainingResult:
    """Return the result of a finished training. The trial comes from the user, so its own code may be imported."""
    description = read_description(out)
    own = OwnCode(trial.algorithm, trial.backbone)
    records.keep_until(out / RECORDS, trial.steps)  # deletes a line that a crash cut off
    made = (r for r in records.read(out / RECORDS) if r.adapter == "source")
    model = place(load_algorithm(description, own), device, trial.precision)
    return TrainingResult(model, description, tuple(made))


def prepare(trial: Trial, out: Path, dataset: DomainDataset, eval_every: int, device: torch.device) -> Training:
    """Check that a trial can be trained on its data, and build its untrained model."""
    for domain in (*trial.train_domains, *trial.test_domains):
        dataset.domain(domain)
    splits = split(dataset, trial.trial_seed)
    check_held_out(trial, splits)
    algorithm = place(build(trial, dataset), device, trial.precision)
    if trial.head_start and not (out / CHECKPOINT).is_file():
        fit_head(algorithm, dataset, splits, trial)
    average = AveragedWeights(algorithm, trial.average) if trial.average > 0 else None
    return Training(trial, out, dataset, splits, algorithm, eval_every, average=average)


@contextmanager
def earlier_weights(algorithm: Algorithm, path: Path) -> Iterator[int]:
    """Give the algorithm the weights of an earlier step for a while; yields the number of that step."""
    tensors, about = load_tensors(path)
    with damaged(path, "delete that directory and train again"):
        step = convert(about.get("step"), Count)
        check_fit(algorithm, tensors)
    with using_weights(algorithm, tensors):
        yield step


def check_fit(algorithm: Algorithm, tensors: Mapping[str, Tensor]) -> None:
    """Refuse weights of other names or shapes."""
    shapes = {name: t.shape for name, t in algorithm.state_dict().items()}
    if shapes != {name: t.shape for name, t in tensors.items()}:
        raise InputError("its weights are those of another network")


def save_with_statistics(folder: Path, training: Training, step: int) -> Description:
    """Save a model with the statistics of its source data."""
    trial = training.trial
    collect_statistics(training.algorithm, training.dataset, training.splits, trial)
    return save_model(folder, training.algorithm, trial.backbone, {"trial": trial.to_json(), "steps": step})


def selected_model(out: Path) -> Path:
    """Return the directory of the model with the best source validation: the last one, or an earlier one."""
    return out / "best" if is_model(out / "best") else out


def restore(training: Training) -> None:
    """Go on from the checkpoint, if there is one; drop later records, which will be made again."""
    out = training.out
    if (out / CHECKPOINT).is_file():
        training.progress = load_checkpoint(out / CHECKPOINT, training.algorithm, training.trial.key, training.average)
    for name in (RECORDS, STEPS):
        records.keep_until(out / name, training.progress.step)
    if (out / RECORDS).is_file():
        own = (r for r in records.read(out / RECORDS) if r.adapter == "source")
        training.records = list(own)


def learn(training: Training, report: ReportProgress, asked_to_stop: Callable[[], bool]) -> None:
    """Run the step loop. Everything random in a step is seeded by (run seed, step), so any step can be the first."""
    trial, algorithm, progress = training.trial, training.algorithm, training.progress
    batch_size = algorithm.hp.batch_size
    loader = TrainLoader(training.dataset, training.splits, trial.train_domains, batch_size, trial.seed, trial.augment)
    saved = time.monotonic()
    logged: list[dict[str, float]] = []  # since the last checkpoint
    for step, batches in prefetch(loader, progress.step, trial.steps - 1, device_of(algorithm)):
        seed_all(derive_seed(trial.seed, "update", step))
        factor = learning_rate_factor(trial.schedule, step, trial.steps, trial.warmup)
        for optimizer in algorithm.optimizers.values():
            scale_learning_rate(optimizer, factor)
        logs = algorithm.update(batches)
        check_finite(logs, step)
        progress.add(logs)
        if training.average is not None:
            training.average.add(algorithm, progress.step)
        logged.append({"step": progress.step, **logs})
        evaluates = progress.step % training.eval_every == 0 or progress.step == trial.steps
        if evaluates:
            check_weights(algorithm, progress.step)
            record_accuracy(training)
        stops = asked_to_stop() and progress.step < trial.steps
        if evaluates or stops or time.monotonic() - saved > CHECKPOINT_SECONDS:
            records.append_lines(training.out / STEPS, logged)
            logged = []
            save_checkpoint(training.out / CHECKPOINT, algorithm, progress, trial.key, training.average)
            saved = time.monotonic()
        report(trial.algorithm, progress.step, trial.steps)
        if stops:
            raise Interrupted


def record_accuracy(training: Training) -> None:
    """Measure the model as it is now, record it, and keep its weights if it is the best so far."""
    means = training.progress.take_means()
    average = training.average
    with nullcontext() if average is None else using_weights(training.algorithm, average.tensors):
        record = record_of(training, measure(training), means)
        records.append(training.out / RECORDS, record)
        training.records.append(record)
        keep_if_best(training, record)


def keep_if_best(training: Training, record: Record) -> None:
    """Keep the weights if no earlier step did as well on the sources; those of the last step are kept anyway."""
    validation = mean(split_of(record, record.trial.train_domains, "out"))
    if validation <= training.progress.best:
        return
    training.progress.best = validation
    if training.progress.step == record.trial.steps:
        (training.out / BEST).unlink(missing_ok=True)
    else:
        save_tensors(training.out / BEST, training.algorithm.state_dict(), {"step": training.progress.step})


def check_finite(logs: dict[str, float], step: int) -> None:
    """Refuse to go on from a loss that is not a number."""
    bad = [name for name, value in logs.items() if not np.isfinite(value)]
    if bad:
        raise InputError(
            f"{bad[0]} is not finite at step {step}: lower the learning rate (--set lr=…). The last checkpoint is kept."
        )


def check_weights(algorithm: Algorithm, step: int) -> None:
    """Refuse to go on with weights that are not numbers; a loss shows them only one step later."""
    check_finite_tensors(
        algorithm.state_dict(),
        f"the weights after step {step}",
        "lower the learning rate (--set lr=…). The last checkpoint is kept",
    )


def measure(training: Training) -> dict[str, dict[str, Outcome]]:
    """Predict without adaptation: held-out images of the sources; of the targets both splits, and all images."""
    trial, dataset, splits = training.trial, training.dataset, training.splits
    source = adapt(training.algorithm, "source")
    outcomes: dict[str, dict[str, Outcome]] = {}
    for domain in trial.train_domains:
        outcomes[domain] = {"out": evaluate(source, dataset.domain(domain), splits[domain].held_out, 64, None)}
    for domain in trial.test_domains:
        everything = evaluate(source, dataset.domain(domain), np.arange(len(dataset.domain(domain))), 64, None)
        outcomes[domain] = {
            "in": everything.part(splits[domain].train),
            "out": everything.part(splits[domain].held_out),
            "all": everything.part(target_indices(dataset, domain, trial.trial_seed)),
        }
    return outcomes


def record_of(training: Training, outcomes: Mapping[str, Mapping[str, Outcome]], logs: Mapping[str, float]) -> Record:
    """Make the record of a step."""
    return Record(
        training.trial,
        training.progress.step,
        "source",
        {domain: {split: o.accuracy for split, o in of.items()} for domain, of in outcomes.items()},
        training.algorithm.describe(),
        logs=logs,
        calibration={d: {split: o.calibration_error for split, o in of.items()} for d, of in outcomes.items()},
        device=describe_device(device_of(training.algorithm)),
        precision=training.trial.precision,
    )
