"""Train one trial: step, record, checkpoint; stop at any moment and go on to the identical result."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from itta.bench.checkpoint import Progress, load_checkpoint, save_checkpoint, save_model
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
from itta.seeds import derive_seed, seed_all
from itta.trial import Trial

CHECKPOINT_SECONDS = 60.0
SOURCE_IMAGES = 64  # per source domain, for what the model takes along from the source data
LOCK = ".lock"
STEPS = "steps.jsonl"  # what every step logged
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
) -> Algorithm:
    """Train into ``out``, going on from what is there; returns the trained model, also saved in ``out``."""
    if dataset is None:
        dataset = load_dataset(trial.dataset, image_size=trial.image_size, strict=trial.strict, seed=trial.trial_seed)
    for domain in (*trial.train_domains, *trial.test_domains):
        dataset.domain(domain)
    splits = split(dataset, trial.trial_seed)
    check_held_out(trial, splits)
    algorithm = build(trial, dataset)
    loader = TrainLoader(dataset, splits, trial.train_domains, algorithm.hp.batch_size, trial.seed, trial.augment)
    with alone(out), interruptible() as asked_to_stop:
        claim(out, trial)
        progress = restore(out, algorithm, trial)
        learn(trial, algorithm, loader, dataset, splits, progress, out, eval_every, report, asked_to_stop)
        algorithm.style_bank = source_styles(algorithm, dataset, splits, trial)
        algorithm.fisher = source_fisher(algorithm, dataset, splits, trial)
        algorithm.differences = source_differences(algorithm, dataset, splits, trial)
        save_model(out, algorithm, trial.backbone, {"trial": trial.to_json(), "steps": progress.step})
    return algorithm.eval()


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Keep other processes out of a directory; the system lets go of it however this one ends."""
    out.mkdir(parents=True, exist_ok=True)
    with open(out / LOCK, "w") as file:
        try:
            lock(file)
        except OSError:
            raise InputError(f"another process is training into {out}: wait for it, or choose another --out.") from None
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
    hp = sample(cls.Hparams, trial.hparams_seed, trial.trial_seed, **trial.overrides)
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
        found = read_trial(path).to_json()
        differing = [k for k, v in trial.to_json().items() if found[k] != v]
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
            records.append(
                out / "records.jsonl",
                Record(trial, progress.step, "source", accuracy, algorithm.describe(), logs=means),
            )
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
