"""Choose an adapter and its settings on the source domains, without a label of the target.

Each source domain in turn stands in for the target: a model is trained on the others, as the model itself was, and
every candidate adapts it to the domain left out. The candidate that gains most over the unadapted models, on average,
is stored with the model. If none gains, the stored choice is not to adapt. A wrapped network cannot be trained again:
it is adapted to each domain as it is, so give it domains that it was not trained on.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from itta.adapters import adapt, find_adapter
from itta.algorithms import Algorithm
from itta.data import open_data
from itta.data.class_order import in_class_order
from itta.data.dataset import DomainDataset, prepare, target_indices
from itta.errors import InputError, InputWarning
from itta.models.trained import Trained
from itta.models.wrapped import Wrapped
from itta.nn.device import place, resolve_device
from itta.progress import ReportProgress, named, silent
from itta.run.evaluate import evaluate
from itta.run.train import train
from itta.settings import ComputeSettings, DataAccess, RunSettings
from itta.store.adapter_choice import Candidate, Choice, write_choice
from itta.store.model import OwnCode, is_model, load_algorithm, load_model, read_description, refuse_code_named_by_file
from itta.text import as_file_name
from itta.trial import Trial

NO_ADAPTATION = Candidate("source", {})
DEFAULT_ADAPTERS = ("itta+", "itta")


@dataclass(frozen=True)
class TuneSettings:
    """How candidates are tried on each stand-in domain."""

    adapters: tuple[str, ...] = ()  # none named: those of DEFAULT_ADAPTERS that fit the model
    seeds: int = 1  # orders of the stream to average over
    batch_size: int = 32
    guard: bool | None = None  # None: as each adapter has it by default
    compute: ComputeSettings = ComputeSettings()


def tune(
    model: Path,
    settings: TuneSettings,
    data: str = "",
    access: DataAccess = DataAccess(),
    own: OwnCode = OwnCode(),
    report: ReportProgress = silent,
) -> Choice:
    """Choose among the adapters' candidates and store the choice with the model."""
    resolve_device(settings.compute.device)  # refuse an absent one before the work
    description = read_description(model)
    trial = description.trial
    refuse_code_named_by_file(description, own)
    whole = load_model(description, own)
    wrapped = whole if trial.algorithm == Wrapped.name else None
    if len(trial.train_domains) < 2 and wrapped is None:
        raise InputError(
            f"{model} was trained on one domain, {trial.train_domains[0]!r}: no other can stand in for a target. "
            "Give the adapter's settings by hand."
        )
    if wrapped is not None:
        warnings.warn(
            f"{model} holds an adopted network, which itta cannot train again: it is adapted as it is, so the domains "
            "should be ones that it was not trained on.",
            InputWarning,
            stacklevel=2,
        )
    candidates = fitting_candidates(whole, settings.adapters)
    dataset = in_class_order(open_data(trial, access, data), description.classes)
    prepare(dataset, trial.train_domains, report)
    plain: dict[str, float] = {}
    gains: dict[str, dict[str, float]] = {str(c): {} for c in candidates}
    for domain in trial.train_domains:
        without = wrapped or trained_without(domain, trial, model, dataset, settings.compute.device, report)
        placed = place(without, settings.compute.device, settings.compute.precision)
        stand_in = StandIn(placed, dataset, domain, trial.trial_seed)
        plain[domain] = stand_in.score(NO_ADAPTATION, replace(settings, seeds=1, guard=False))
        for i, candidate in enumerate(candidates):
            report(f"adapt to {domain}", i, len(candidates))
            gains[str(candidate)][domain] = stand_in.score(candidate, settings) - plain[domain]
        report(f"adapt to {domain}", len(candidates), len(candidates))
    choice = Choice(best_candidate(candidates, gains), gains, plain)
    write_choice(model, choice)
    return choice


def fitting_candidates(model: Trained, adapters: Sequence[str]) -> list[Candidate]:
    """Return the settings to try. An adapter that does not fit the model is refused before anything is trained.

    Of the default adapters, those that do not fit are left out: `itta` needs a model of ITTA's training.
    """
    found = []
    for name in adapters or DEFAULT_ADAPTERS:
        tried = [Candidate(name, settings) for settings in find_adapter(name).candidates]
        try:
            for candidate in tried:
                adapt(model, candidate.adapter, **candidate.settings)
        except InputError:
            if adapters:
                raise
            continue
        found += tried
    return found


def trained_without(
    domain: str, trial: Trial, model: Path, dataset: DomainDataset, device: str, report: ReportProgress
) -> Algorithm:
    """Train the model as if a domain had never been seen; trained once, and kept beside the model."""
    others = tuple(d for d in trial.train_domains if d != domain)
    fingerprint = dataset.fingerprint if trial.fingerprint else ""
    part = replace(trial, train_domains=others, test_domains=(domain,), fingerprint=fingerprint)
    out = model / "tune" / as_file_name(domain)
    if is_model(out):
        description = read_description(out)
        if not description.trial.differences(part):
            return load_algorithm(description, OwnCode(trial.algorithm, trial.backbone))  # as checked above
    return train(part, out, dataset, RunSettings(device=device), named(report, f"train without {domain}")).model


@dataclass(frozen=True)
class StandIn:
    """A source domain in the place of the target, and the model that has never seen it."""

    model: Trained
    dataset: DomainDataset
    domain: str
    trial_seed: int

    def score(self, candidate: Candidate, settings: TuneSettings) -> float:
        """Measure accuracy along the stream of the domain, mean over the seeds of its order."""
        adapter = adapt(self.model, candidate.adapter, guard=settings.guard, **candidate.settings)
        images = self.dataset.domain(self.domain)
        indices = target_indices(self.dataset, self.domain, self.trial_seed)
        runs = [evaluate(adapter, images, indices, settings.batch_size, seed) for seed in range(settings.seeds)]
        return float(np.mean([run.accuracy for run in runs]))


def best_candidate(candidates: Sequence[Candidate], gains: dict[str, dict[str, float]]) -> Candidate:
    """Return the candidate with the largest mean gain, or no adaptation if none gains."""

    def mean_gain(candidate: Candidate) -> float:
        return float(np.mean(list(gains[str(candidate)].values())))

    best = max(candidates, key=mean_gain)
    return best if mean_gain(best) > 0 else NO_ADAPTATION
