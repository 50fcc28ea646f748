"""Train one trial: step, record, checkpoint; stop at any moment and go on to the identical result."""

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np

from itta import records
from itta.adapters import adapt
from itta.algorithms import Algorithm, Task, find_algorithm
from itta.data import load_dataset
from itta.data.dataset import DomainDataset, Split, split, target_indices
from itta.data.loaders import TrainLoader, prefetch
from itta.errors import InputError
from itta.hparams import sample
from itta.metrics.selection import mean, split_of
from itta.models.source_statistics import source_confusions, source_differences, source_fisher, source_styles
from itta.nn import make_backbone
from itta.records import Record
from itta.run.directory import alone, claim
from itta.run.evaluate import Outcome, evaluate
from itta.seeds import derive_seed, seed_all
from itta.store.model import Progress, load_checkpoint, load_tensors, save_checkpoint, save_model, save_tensors
from itta.trial import Trial

CHECKPOINT_SECONDS = 60.0
STEPS = "steps.jsonl"  # what every step logged
BEST = "best.safetensors"  # weights of the best step so far
Report = Callable[[int, dict[str, float]], None]


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop and did so after a whole step, with a checkpoint."""


def train(
    trial: Trial,
    out: Path,
    dataset: DomainDataset | None = None,
    *,
    eval_every: int = 300,
    report: Report = lambda step, logs: None,
    locked: bool = False,
) -> Algorithm:
    """Train into ``out``, going on from what is there; returns the trained model, also saved in ``out``.

    Where an earlier step did better on the held-out images of the sources, the model of that step is kept beside it,
    in ``out/best``. ``locked`` says that the caller keeps others out of the directory.
    """
    if dataset is None:
        dataset = load_dataset(trial.dataset, image_size=trial.image_size, strict=trial.strict, seed=trial.trial_seed)
    for domain in (*trial.train_domains, *trial.test_domains):
        dataset.domain(domain)
    splits = split(dataset, trial.trial_seed)
    check_held_out(trial, splits)
    algorithm = build(trial, dataset)
    loader = TrainLoader(dataset, splits, trial.train_domains, algorithm.hp.batch_size, trial.seed, trial.augment)
    with nullcontext() if locked else alone(out), interruptible() as asked_to_stop:
        claim(out, trial)
        progress = restore(out, algorithm, trial)
        learn(trial, algorithm, loader, dataset, splits, progress, out, eval_every, report, asked_to_stop)
        if (out / BEST).is_file():
            with earlier_weights(algorithm, out / BEST) as step:
                finish(out / "best", algorithm, dataset, splits, trial, step)
        finish(out, algorithm, dataset, splits, trial, progress.step)
        (out / BEST).unlink(missing_ok=True)
    return algorithm.eval()


@contextmanager
def earlier_weights(algorithm: Algorithm, path: Path) -> Iterator[int]:
    """The algorithm as it was at an earlier step, given by its number."""
    last = {name: tensor.clone() for name, tensor in algorithm.state_dict().items()}
    tensors, about = load_tensors(path)
    algorithm.load_state_dict(tensors)
    try:
        yield about["step"]
    finally:
        algorithm.load_state_dict(last)


def finish(
    folder: Path, algorithm: Algorithm, dataset: DomainDataset, splits: dict[str, Split], trial: Trial, step: int
) -> None:
    """Save a model with what it takes along from the source data."""
    algorithm.style_bank = source_styles(algorithm, dataset, splits, trial)
    algorithm.fisher = source_fisher(algorithm, dataset, splits, trial)
    algorithm.differences = source_differences(algorithm, dataset, splits, trial)
    algorithm.confusions = source_confusions(algorithm, dataset, splits, trial)
    save_model(folder, algorithm, trial.backbone, {"trial": trial.to_json(), "steps": step})


def selected_model(out: Path) -> Path:
    """Where the model with the best source validation of a finished run is: the last one, or an earlier one."""
    return out / "best" if (out / "best" / "model.json").is_file() else out


def check_held_out(trial: Trial, splits: dict[str, Split]) -> None:
    """Refuse a domain too small to measure on."""
    for domain in (*trial.train_domains, *trial.test_domains):
        train, held_out = splits[domain]
        if len(held_out) == 0 or len(train) == 0:
            raise InputError(
                f"domain {domain!r} has {len(train) + len(held_out)} images: too few to hold some out and train on the "
                "rest. Give it at least 5."
            )


def build(trial: Trial, dataset: DomainDataset) -> Algorithm:
    """The untrained algorithm of a trial; a pure function of the trial."""
    cls = find_algorithm(trial.algorithm)
    hp = sample(cls.Hparams, trial.hparams_seed, trial.trial_seed, trial.regime, **trial.overrides)
    seed_all(trial.seed)
    task = Task(
        dataset.classes,
        trial.train_domains,
        trial.image_size,
        lambda: make_backbone(trial.backbone, trial.weights, trial.image_size),
    )
    return cls(task, hp).train()


def restore(out: Path, algorithm: Algorithm, trial: Trial) -> Progress:
    """Go on from the checkpoint, if there is one; records made after it are dropped and will be made again."""
    path = out / "checkpoint.safetensors"
    progress = load_checkpoint(path, algorithm, trial.key) if path.is_file() else Progress()
    for name in ("records.jsonl", STEPS):
        records.keep_until(out / name, progress.step)
    return progress


def learn(
    trial: Trial,
    algorithm: Algorithm,
    loader: TrainLoader,
    dataset: DomainDataset,
    splits: dict[str, Split],
    progress: Progress,
    out: Path,
    eval_every: int,
    report: Report,
    asked_to_stop: Callable[[], bool],
) -> None:
    """The step loop. Everything random in a step is seeded by (run seed, step), so any step can be the first."""
    saved = time.monotonic()
    logged: list[dict[str, float]] = []  # since the last checkpoint
    for step, batches in prefetch(loader, progress.step, trial.steps - 1):
        seed_all(derive_seed(trial.seed, "update", step))
        logs = algorithm.update(batches)
        check_finite(logs, step)
        progress.step = step + 1
        logged.append({"step": progress.step, **logs})
        for name, value in logs.items():
            progress.log_sums[name] = progress.log_sums.get(name, 0.0) + value
            progress.log_counts[name] = progress.log_counts.get(name, 0) + 1
        evaluates = progress.step % eval_every == 0 or progress.step == trial.steps
        if evaluates:
            means = {name: total / progress.log_counts[name] for name, total in progress.log_sums.items()}
            outcomes = measure(algorithm, dataset, splits, trial)
            record = record_of(trial, progress.step, algorithm, outcomes, means)
            records.append(out / "records.jsonl", record)
            keep_if_best(out, algorithm, record, progress)
            progress.log_sums, progress.log_counts = {}, {}
        stops = asked_to_stop() and progress.step < trial.steps
        if evaluates or stops or time.monotonic() - saved > CHECKPOINT_SECONDS:
            records.append_lines(out / STEPS, logged)
            logged = []
            save_checkpoint(out / "checkpoint.safetensors", algorithm, progress, trial.key)
            saved = time.monotonic()
        report(progress.step, logs)
        if stops:
            raise Interrupted


def keep_if_best(out: Path, algorithm: Algorithm, record: Record, progress: Progress) -> None:
    """Put the weights aside if no step before did as well on the sources, as tables select; not the last ones."""
    validation = mean(split_of(record, record.trial.train_domains, "out"))
    if validation <= progress.best:
        return
    progress.best = validation
    if progress.step == record.trial.steps:
        (out / BEST).unlink(missing_ok=True)
    else:
        save_tensors(out / BEST, algorithm.state_dict(), {"step": progress.step})


def check_finite(logs: dict[str, float], step: int) -> None:
    bad = [name for name, value in logs.items() if not np.isfinite(value)]
    if bad:
        raise InputError(
            f"{bad[0]} is not finite at step {step}: lower the learning rate (--set lr=…). The last checkpoint is kept."
        )


def measure(
    algorithm: Algorithm, dataset: DomainDataset, splits: dict[str, Split], trial: Trial
) -> dict[str, dict[str, Outcome]]:
    """Without adaptation: held-out images of the sources; both splits of the targets, and all they are judged on."""
    source = adapt(algorithm, "source")
    found: dict[str, dict[str, Outcome]] = {}
    for domain in trial.train_domains:
        found[domain] = {"out": evaluate(source, dataset.domain(domain), splits[domain].held_out, 64, None)}
    for domain in trial.test_domains:
        everything = evaluate(source, dataset.domain(domain), np.arange(len(dataset.domain(domain))), 64, None)
        found[domain] = {
            "in": everything.part(splits[domain].train),
            "out": everything.part(splits[domain].held_out),
            "all": everything.part(target_indices(dataset, domain, trial.trial_seed)),
        }
    return found


def record_of(
    trial: Trial, step: int, algorithm: Algorithm, found: Mapping[str, Mapping[str, Outcome]], logs: dict[str, float]
) -> Record:
    return Record(
        trial,
        step,
        "source",
        {domain: {split: outcome.accuracy for split, outcome in of.items()} for domain, of in found.items()},
        algorithm.describe(),
        logs=logs,
        calibration={d: {split: outcome.calibration_error for split, outcome in of.items()} for d, of in found.items()},
    )


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C or SIGTERM into a request to stop after the step; a second one stops at once."""
    asked = [False]

    def ask(number: int, frame: object) -> None:
        if asked[0]:
            raise KeyboardInterrupt
        asked[0] = True

    try:
        before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: the caller handles signals
        yield lambda: asked[0]
        return
    try:
        yield lambda: asked[0]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
