"""Choose an adapter and its settings on the source domains: nobody tunes by hand, and no label of a target is used.

Each source domain in turn stands in for the target: a model is trained on the others, as the model itself was, and
every candidate adapts it to the one left out. What gains most over the unadapted models, on average, is stored with the
model; if nothing gains, not adapting is.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from itta.adapters import adapt, find_adapter
from itta.algorithms import Algorithm
from itta.data import load_dataset
from itta.data.dataset import DomainDataset, prepare, target_indices
from itta.data.target import trial_of
from itta.errors import InputError
from itta.records import replace_text
from itta.run.evaluate import evaluate
from itta.run.train import train
from itta.store.model import load, read_description
from itta.trial import Trial

CHOICE = "adapter.json"
Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Candidate:
    adapter: str
    settings: dict[str, Any]

    def __str__(self) -> str:
        return " ".join([self.adapter, *(f"{k}={shown(v)}" for k, v in self.settings.items())])


@dataclass(frozen=True)
class Choice:
    chosen: Candidate
    gains: dict[str, dict[str, float]]  # candidate -> stand-in domain -> accuracy gained, mean over seeds
    plain: dict[str, float]  # stand-in domain -> accuracy without adaptation


def tune(
    model: Path,
    adapters: Sequence[str],
    *,
    data: str | None = None,
    seeds: Sequence[int] = (0,),
    batch_size: int = 32,
    guard: bool | None = None,
    data_root: Path | None = None,
    cache: bool = True,
    report: Report = lambda what, done, total: None,
) -> Choice:
    """Choose among the adapters' candidates and write the choice into the model's directory."""
    trial = trial_of(model)
    if len(trial.train_domains) < 2:
        raise InputError(
            f"{model} was trained on one domain, {trial.train_domains[0]!r}: there is none to stand in for a target. "
            "Give the adapter's settings by hand."
        )
    candidates = [Candidate(name, settings) for name in adapters for settings in find_adapter(name).candidates]
    source = data or trial.dataset
    dataset = load_dataset(
        source,
        image_size=trial.image_size,
        strict=trial.strict,
        root=data_root,
        cache=cache,
        seed=trial.trial_seed,
    )
    prepare(dataset, trial.train_domains, report)
    plain: dict[str, float] = {}
    gains: dict[str, dict[str, float]] = {str(c): {} for c in candidates}
    for domain in trial.train_domains:
        stand_in = trained_without(domain, trial, model, dataset, report)
        plain[domain] = score(stand_in, Candidate("source", {}), dataset, domain, trial, seeds[:1], batch_size, False)
        for i, candidate in enumerate(candidates):
            report(f"adapt to {domain}", i, len(candidates))
            found = score(stand_in, candidate, dataset, domain, trial, seeds, batch_size, guard)
            gains[str(candidate)][domain] = found - plain[domain]
        report(f"adapt to {domain}", len(candidates), len(candidates))
    choice = Choice(best(candidates, gains), gains, plain)
    replace_text(model / CHOICE, json.dumps(asdict(choice), indent=2) + "\n")
    return choice


def trained_without(domain: str, trial: Trial, model: Path, dataset: DomainDataset, report: Report) -> Algorithm:
    """The model as it would be had it never seen a domain; trained once, and kept beside the model."""
    others = tuple(d for d in trial.train_domains if d != domain)
    part = replace(trial, train_domains=others, test_domains=(domain,))
    out = model / "tune" / domain
    if (out / "model.json").is_file() and trial_of(out) == part:
        return load(out)
    return train(part, out, dataset, report=lambda step, logs: report(f"train without {domain}", step, part.steps))


def score(
    model: Algorithm,
    candidate: Candidate,
    dataset: DomainDataset,
    domain: str,
    trial: Trial,
    seeds: Sequence[int],
    batch_size: int,
    guard: bool | None,
) -> float:
    """Accuracy along the stream of a domain, mean over the seeds of its order."""
    adapter = adapt(model, candidate.adapter, guard=guard, **candidate.settings)
    images, indices = dataset.domain(domain), target_indices(dataset, domain, trial.trial_seed)
    return float(np.mean([evaluate(adapter, images, indices, batch_size, seed).accuracy for seed in seeds]))


def best(candidates: Sequence[Candidate], gains: dict[str, dict[str, float]]) -> Candidate:
    """The candidate with the largest mean gain; not to adapt, if none gains."""
    found = max(candidates, key=lambda c: np.mean(list(gains[str(c)].values())))
    return found if np.mean(list(gains[str(found)].values())) > 0 else Candidate("source", {})


def stored_choice(model: Path) -> Candidate | None:
    """What `tune` chose for a model, if it did."""
    read_description(model)
    path = model / CHOICE
    if not path.is_file():
        return None
    try:
        return Candidate(**json.loads(path.read_text(encoding="utf-8"))["chosen"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged ({error!r}): delete it, or run itta tune again.") from error


def shown(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
