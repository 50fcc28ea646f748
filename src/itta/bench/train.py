"""Train one trial: step, record, checkpoint; stop at any moment and go on to the identical result."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from itta import records
from itta.adapters import adapt
from itta.adapters.eata import fisher_information
from itta.algorithms import Algorithm, Task, find_algorithm
from itta.algorithms.consistency import draw_target_view
from itta.bench.checkpoint import Progress, load_checkpoint, load_tensors, save_checkpoint, save_model, save_tensors
from itta.bench.evaluate import evaluate
from itta.data import load_dataset
from itta.data.dataset import DomainDataset, Split, split, target_indices
from itta.data.loaders import TrainLoader, prefetch, stream
from itta.errors import InputError
from itta.hparams import sample
from itta.nn import make_backbone
from itta.nn.backbone import evaluating
from itta.nn.batch_norm import has_batch_norm
from itta.nn.style_bank import StyleBank, collect_styles
from itta.nn.views import two_views
from itta.records import Record, replace_text
from itta.report.selection import mean, split_of
from itta.seeds import derive_seed, seed_all
from itta.trial import Trial

CHECKPOINT_SECONDS = 60.0
SOURCE_IMAGES = 64  # per source domain, for what the model takes along from the source data
LOCK = ".lock"
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
    save_model(folder, algorithm, trial.backbone, {"trial": trial.to_json(), "steps": step})


def selected_model(out: Path) -> Path:
    """Where the model with the best source validation of a finished run is: the last one, or an earlier one."""
    return out / "best" if (out / "best" / "model.json").is_file() else out


class Busy(InputError):
    """Another process is at it."""


@contextmanager
def alone(out: Path, patience: float = 0.0) -> Iterator[None]:
    """Keep other processes out of a directory; the system lets go of it however this one ends.

    Waits so many seconds for another one to end.
    """
    out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + patience
    with open(out / LOCK, "w") as file:
        while True:
            try:
                lock(file)
                break
            except OSError:
                if time.monotonic() >= deadline:
                    raise Busy(
                        f"another process is training into {out}: wait for it, or choose another --out."
                    ) from None
                time.sleep(0.2)
        yield


def lock(file: IO[str]) -> None:
    try:
        import fcntl
    except ImportError:  # Windows has no such locks
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


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


def claim(out: Path, trial: Trial) -> None:
    """Take the directory for this trial; refuse one that holds another."""
    path = out / "trial.json"
    if path.is_file():
        found = read_trial(path)
        differing = [f.name for f in fields(Trial) if getattr(found, f.name) != getattr(trial, f.name)]
        if differing:
            raise InputError(
                f"{out} holds another trial (it differs in {', '.join(differing)}): choose another --out, or delete it."
            )
    elif not all(unfinished(file) or file.name == LOCK for file in out.iterdir()):
        (out / LOCK).unlink()  # it is not our directory
        raise InputError(f"{out} is not empty and holds no trial: choose another --out.")
    for file in filter(unfinished, out.iterdir()):
        file.unlink()
    replace_text(path, json.dumps(trial.to_json(), indent=2) + "\n")


def unfinished(file: Path) -> bool:
    """Whether a killed run was still writing this file of ours."""
    return file.match("*.json*.*.tmp") or file.match("*.safetensors.*.tmp")


def read_trial(path: Path) -> Trial:
    try:
        return Trial.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} is damaged or not ours ({error!r}): choose another --out, or delete it.") from error


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
            accuracy = accuracies(algorithm, dataset, splits, trial)
            record = Record(trial, progress.step, "source", accuracy, algorithm.describe(), logs=means)
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


def accuracies(
    algorithm: Algorithm, dataset: DomainDataset, splits: dict[str, Split], trial: Trial
) -> dict[str, dict[str, float]]:
    """Without adaptation: held-out images of the sources; both splits of the targets, and all they are judged on."""
    source = adapt(algorithm, "source")
    found: dict[str, dict[str, float]] = {}
    for domain in trial.train_domains:
        found[domain] = {"out": evaluate(source, dataset.domain(domain), splits[domain].held_out, 64, None).accuracy}
    for domain in trial.test_domains:
        everything = evaluate(source, dataset.domain(domain), np.arange(len(dataset.domain(domain))), 64, None)
        right = everything.correct
        found[domain] = {
            "in": float(right[splits[domain].train].mean()),
            "out": float(right[splits[domain].held_out].mean()),
            "all": float(right[target_indices(dataset, domain, trial.trial_seed)].mean()),
        }
    return found


def source_styles(algorithm: Algorithm, dataset: DomainDataset, splits: dict[str, Split], trial: Trial) -> StyleBank:
    """The style bank: styles of some training images of each source domain."""
    batches = source_images(dataset, splits, trial)
    images = {domain: map(algorithm.inputs, batches[domain]) for domain in trial.train_domains}
    return collect_styles(algorithm.backbone, images, algorithm.backbone.block_names[:2])


def source_fisher(
    algorithm: Algorithm, dataset: DomainDataset, splits: dict[str, Split], trial: Trial
) -> dict[str, Tensor] | None:
    """The Fisher information on the same images, where the backbone has the batch normalisation it is meant for."""
    if not has_batch_norm(algorithm.backbone):
        return None
    batches = (x for images in source_images(dataset, splits, trial).values() for x in images)
    return fisher_information(algorithm, (x for x in batches if len(x) > 1)) or None  # one image has no statistics


@torch.no_grad()
def source_differences(
    algorithm: Algorithm, dataset: DomainDataset, splits: dict[str, Split], trial: Trial
) -> dict[str, Tensor] | None:
    """The range, in every dimension, of what f_w gets to see on the same images, styles mixed across domains."""
    if not hasattr(algorithm, "f_w"):
        return None
    generator = torch.Generator().manual_seed(derive_seed(trial.seed, "differences"))
    found = []
    with evaluating(algorithm):
        for parts in zip(*source_images(dataset, splits, trial).values()):
            x = algorithm.inputs(torch.cat(parts))
            drawn = draw_target_view(algorithm, len(x), 0, generator)
            z, z_aug = two_views(partial(algorithm.backbone, x), drawn)
            found.append(z - z_aug if algorithm.hp.difference == "z-z'" else z_aug - z)
    h = torch.cat(found)
    return {"low": h.amin(0), "high": h.amax(0)}


def source_images(dataset: DomainDataset, splits: dict[str, Split], trial: Trial) -> dict[str, Iterator[Tensor]]:
    """Batches of some training images of each source domain."""

    def batches(domain: str) -> Iterator[Tensor]:
        rng = np.random.RandomState(derive_seed(trial.seed, "style bank", domain))
        chosen = rng.permutation(splits[domain].train)[:SOURCE_IMAGES]
        return (x for _, x, _ in stream(dataset.domain(domain), chosen, 32))

    return {domain: batches(domain) for domain in trial.train_domains}


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
