"""Accuracy estimated without labels, beside the truth: every target and seed of the grid, with every estimator.

The models are those of benchmarks.itta_plus_grid (ERM), trained here if they are missing. Each target's 600 images
arrive in random order, 16 at a time. The stand-ins of a model that was trained without them are collected from its
sources. itta+, T3A and LAME are judged; the estimators see no label of a target, and their settings were chosen by
benchmarks.estimates_selection on source domains. The same command goes on after an interruption. It writes
estimates.csv and prints the tables of docs/results/estimates.md.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.command import run_command, write_rows
from benchmarks.itta_plus_grid import Options, Stream, models, streams
from benchmarks.quick_models import name_of
from itta.adapters import adapt
from itta.algorithms import Algorithm
from itta.data.dataset import DomainDataset, split
from itta.data.loaders import stream as read_stream
from itta.estimators import ESTIMATORS, Witness, estimate_from
from itta.estimators.base import Evidence
from itta.models.stand_ins import StandIns
from itta.run.source_data import collect_stand_ins
from itta.store.model import load
from itta.trial import Trial

METHODS = ("itta+", "t3a", "lame")
Answers = dict[str, torch.Tensor]  # labels [N], classes [N] by method, probabilities [N, C] "before" and "by" opinions
SINGLE = tuple(name for name in ESTIMATORS if name != "combined")


class Row(NamedTuple):
    """One target, one seed, one method. Accuracies are percentages; gains are points."""

    dataset: str
    target: str
    seed: int
    images: int
    method: str
    before: float  # truth
    after: float  # truth
    confidence: float  # single estimators of `before`
    difference: float
    atc: float
    agreement: float
    nuclear_norm: float
    combined: float
    low: float
    high: float
    after_combined: float
    after_low: float
    after_high: float
    gain: float
    gain_low: float
    gain_high: float
    helps: float
    distance: float
    refused: str


def known_stand_ins(
    out: Path, folder: Path, trained: Algorithm, dataset: DomainDataset, trial: Trial
) -> StandIns | None:
    """The model's own stand-ins, or those collected from its sources, which are kept. The model gets them."""
    file = out / "stand_ins" / f"{folder.name}.pt"
    if trained.stand_ins is None or trained.stand_ins.reader is None:  # trained without, or by an earlier version
        if not file.is_file():
            made = collect_stand_ins(trained, dataset, split(dataset, trial.trial_seed), trial)
            assert made is not None
            write_tensors(file, made.tensors())
        trained.stand_ins = StandIns.from_tensors(torch.load(file, weights_only=True))
    return trained.stand_ins


def kept_answers(
    out: Path, folder: Path, trained: Algorithm, stream: Stream, methods: tuple[str, ...] = METHODS
) -> Answers:
    """The answers of every method along a stream, and those that itta+ averages; kept in a file."""
    file = out / "answers" / folder.name / f"{stream.kind}-{stream.batch}-{stream.draw}.pt"
    if not file.is_file():
        found: Answers = {"labels": torch.from_numpy(stream.domain.labels[stream.order])}
        for method in methods:
            adapter = adapt(trained, method, guard=False)
            witness = Witness(trained, adapter) if method == "itta+" else adapter
            batches = (x for _, x, _ in read_stream(stream.domain, stream.order, stream.batch))
            found[method] = torch.cat([witness(x).argmax(1) for x in batches])
            if isinstance(witness, Witness):
                evidence = witness.evidence()
                found |= {"before": evidence.before} | {f"by {name}": p for name, p in evidence.opinions.items()}
                found |= {} if evidence.early is None else {"early": evidence.early}
                found |= {} if evidence.neighbours is None else {"neighbours": torch.tensor(evidence.neighbours)}
        write_tensors(file, found)
    return torch.load(file, weights_only=True)


def write_tensors(file: Path, tensors: dict[str, torch.Tensor]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(tensors, file.with_suffix(".tmp"))
    file.with_suffix(".tmp").replace(file)


def evidence_of(trained: Algorithm, found: Answers, method: str) -> Evidence:
    """The kept answers as an estimator sees them."""
    opinions = {name.removeprefix("by "): p for name, p in found.items() if name.startswith("by ")}
    confusions = (trained.confusions or {}).get("mean")
    neighbours = float(found["neighbours"].mean()) if "neighbours" in found else None
    early, by_itta_plus = found.get("early"), method == "itta+"
    return Evidence(found["before"], found[method], opinions, confusions, neighbours, early, by_itta_plus)


def rows_of(trial: Trial, trained: Algorithm, known: StandIns | None, kept: Answers) -> Iterator[Row]:
    y = kept["labels"]
    for method in METHODS:
        evidence = evidence_of(trained, kept, method)
        found = estimate_from(evidence, known)
        e = found.combined
        assert e is not None
        truth = [100 * float((answers == y).float().mean()) for answers in (evidence.answers, evidence.after)]
        shares = [100 * v for s in (e.before, e.after, e.gain) for v in (s.value, s.low, s.high)]
        single = [100 * found.single[name] for name in SINGLE]
        numbers = [round(v, 2) for v in (*truth, *single, *shares)]
        yield Row(
            Path(trial.dataset).name, trial.test_domains[0], trial.trial_seed, len(y), method, *numbers,
            round(e.helps, 3), round(e.distance, 2), e.refused,
        )  # fmt: skip


def measure(options: Options) -> Iterator[Row]:
    for trial, folder, dataset in models(options):
        trained = load(folder)
        known = known_stand_ins(options.out, folder, trained, dataset, trial)
        stream = next(s for s in streams(trial, dataset, options.images) if (s.kind, s.batch) == ("iid", 16))
        yield from rows_of(trial, trained, known, kept_answers(options.out, folder, trained, stream))
        print(name_of(trial), file=sys.stderr, flush=True)


def tables(rows: list[Row]) -> str:
    """The tables of the results page."""
    level = [r for r in rows if r.method == "itta+"]
    lines = ["| estimator | mean error | worst | bias |", "| --- | ---: | ---: | ---: |"]
    for name in (*SINGLE, "combined"):
        errors = np.array([getattr(r, name) - r.before for r in level])
        lines.append(f"| {name} | {np.abs(errors).mean():.1f} | {np.abs(errors).max():.1f} | {errors.mean():+.1f} |")
    after = np.array([r.after_combined - r.after for r in level])
    lines.append(
        f"| combined, after itta+ | {np.abs(after).mean():.1f} | {np.abs(after).max():.1f} | {after.mean():+.1f} |"
    )
    covered = np.mean([[r.low <= r.before <= r.high, r.after_low <= r.after <= r.after_high] for r in level], 0)
    width = np.mean([r.high - r.low for r in level])
    lines += [
        "",
        f"Cells: {len(level)}. 90 % intervals hold the truth in {100 * covered[0]:.0f} % of the cells before and",
    ]
    lines += [f"{100 * covered[1]:.0f} % after adaptation; they are {width:.0f} points wide on average.", ""]
    lines += [*by_part(level), ""]
    lines += ["| method | cells | gains ≥ 2 points | sign right | gain: mean error | interval holds it |"]
    lines += ["| --- | ---: | ---: | ---: | ---: | ---: |"]
    for method in METHODS:
        own = [r for r in rows if r.method == method]
        large = [r for r in own if abs(r.after - r.before) >= 2]
        right = np.mean([(r.gain > 0) == (r.after > r.before) for r in large]) if large else float("nan")
        error = np.mean([abs(r.gain - (r.after - r.before)) for r in own])
        held = np.mean([r.gain_low <= r.after - r.before <= r.gain_high for r in own])
        lines.append(
            f"| {method} | {len(own)} | {len(large)} | {100 * right:.0f} % | {error:.1f} | {100 * held:.0f} % |"
        )
    lines += ["", sign_over_all(rows)]
    lines += ["", "| target | truth | confidence | combined | interval | after | estimated |"]
    lines += ["| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for r in level:
        lines.append(
            f"| {r.dataset} {r.target}, seed {r.seed} | {r.before:.1f} | {r.confidence:.1f} | {r.combined:.1f} | "
            f"{r.low:.0f} to {r.high:.0f} | {r.after:.1f} | {r.after_combined:.1f} |"
        )
    return "\n".join(lines)


def by_part(rows: list[Row]) -> Iterator[str]:
    """The mean errors of the level by data set, and the mean signed errors by target."""
    for dataset in dict.fromkeys(r.dataset for r in rows):
        own = [r for r in rows if r.dataset == dataset]
        combined, confidence = (
            np.mean([abs(getattr(r, n) - r.before) for r in own]) for n in ("combined", "confidence")
        )
        targets = {t: np.mean([r.combined - r.before for r in own if r.target == t]) for t in (r.target for r in own)}
        signed = ", ".join(f"{target} {error:+.1f}" for target, error in targets.items())
        yield f"{dataset}: error {combined:.1f}, of confidence {confidence:.1f}; by target: {signed}."


def sign_over_all(rows: list[Row]) -> str:
    """How often the sign of the gain is right, over all methods, and how wide the intervals of itta+'s gain are."""
    large = [r for r in rows if abs(r.after - r.before) >= 2]
    right = sum((r.gain > 0) == (r.after > r.before) for r in large)
    width = np.mean([r.gain_high - r.gain_low for r in rows if r.method == "itta+"])
    return f"Sign right in {right} of {len(large)} cells; intervals of the gain of itta+: {width:.0f} points wide."


def main(options: Options) -> None:
    rows = list(measure(options))
    write_rows(options.records / "estimates.csv", rows, Row._fields)
    print(tables(rows))


if __name__ == "__main__":
    run_command("estimates", main, Options(training=("erm",)), __doc__)
