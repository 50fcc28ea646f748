"""Choose the recipe of quick trainings on source domains: which settings do best on a domain that was left out?

Every candidate trains a model on two neighbouring domains of a data set, for all domains in a ring, with every seed,
and is measured on the other domains. For a target of the data set, these are trainings without it that leave one of its
sources out. The same command continues after an interruption, and does only the new part after a change of the
candidates.

python -m benchmarks.recipe_selection --data PACS
"""

import csv
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np

from benchmarks.command import run_command, write_rows
from itta.data import load_dataset
from itta.data.dataset import DomainDataset
from itta.run.source_data import without_stand_ins
from itta.run.train import TrainingResult, train
from itta.trial import Trial


@dataclass(frozen=True)
class Candidate:
    """Settings of a training and of its method."""

    training: Mapping[str, Any] = field(default_factory=dict)
    method: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = 1
    algorithm: str = "erm"


START = Candidate({"steps": 150, "image_size": 64}, {"lr": 2e-4, "batch_size": 12}, seeds=3)
STEADY = {"steps": 225, "image_size": 64, "head_start": True, "warmup": 50, "average": 0.95}
FEW = {"lr": 2e-4, "batch_size": 8}
RARELY = {**FEW, "align_every": 5}  # f_w learns in every fifth step


CANDIDATES = {
    "start": START,
    "quick": Candidate(STEADY, FEW, seeds=3),
    "quick without warm-up": Candidate({**STEADY, "warmup": 0}, FEW, seeds=3),
    "quick without head start": Candidate({**STEADY, "head_start": False}, FEW),
    "quick without average": Candidate({**STEADY, "average": 0.0}, FEW),
    "quick with lr 1e-4": Candidate(STEADY, {**FEW, "lr": 1e-4}),
    "consistency": Candidate(STEADY, FEW, algorithm="consistency"),
    "itta": Candidate(STEADY, FEW, algorithm="itta"),
    "itta, every 5": Candidate(STEADY, RARELY, algorithm="itta"),
    "itta, every 5, f_w × 10": Candidate(STEADY, {**RARELY, "fw_lr_scale": 1.0}, algorithm="itta"),
    "itta, every 5, α 0.1": Candidate(STEADY, {**RARELY, "alpha": 0.1}, algorithm="itta"),
    "itta, every 5, α 10": Candidate(STEADY, {**RARELY, "alpha": 10.0}, algorithm="itta"),
}


@dataclass(frozen=True)
class Options:
    out: Path = Path("recipe")  # models
    records: Path = Path("docs/results/records")  # for recipe_selection.csv
    data: tuple[str, ...] = ("PACS",)  # "emoji", or folders root/domain/class/image
    names: tuple[str, ...] = ()  # candidates; default: all


class Row(NamedTuple):
    candidate: str
    data: str
    sources: str
    target: str  # the domain that was left out
    seed: int
    accuracy: float  # on it, in %
    validation: float  # on held-out images of the sources, in %


class Case(NamedTuple):
    """One training: a candidate on two domains."""

    candidate: str
    data: str
    sources: tuple[str, str]
    seed: int


def measure(options: Options) -> Iterator[Row]:
    """Train what is missing, and yield the accuracies."""
    for data, name in product(options.data, options.names or CANDIDATES):
        candidate = CANDIDATES[name]
        dataset = load_dataset(data, image_size=candidate.training["image_size"])
        for seed, pair in product(range(candidate.seeds), ring(tuple(dataset.domains))):
            case = Case(name, data, pair, seed)
            yield from rows_of(case, run(options, case, dataset))


def ring(domains: Sequence[str]) -> list[tuple[str, str]]:
    """Return every domain with the next one.

    >>> ring("abc")
    [('a', 'b'), ('b', 'c'), ('c', 'a')]
    """
    return [(domain, domains[(i + 1) % len(domains)]) for i, domain in enumerate(domains)]


def run(options: Options, case: Case, dataset: DomainDataset) -> TrainingResult:
    """Train a case, or load its model."""
    candidate = CANDIDATES[case.candidate]
    others = tuple(d for d in dataset.domains if d not in case.sources)
    trial = Trial(
        case.data, candidate.algorithm, case.sources, others, trial_seed=case.seed, overrides=candidate.method,
        **candidate.training,
    )  # fmt: skip
    folder, began = options.out / "runs" / trial.key, time.monotonic()
    known = (folder / "model.json").is_file()
    with without_stand_ins():
        result = train(trial, folder, dataset)
    if not known:
        print(*case, f"{time.monotonic() - began:.0f} s", flush=True)
    return result


def rows_of(case: Case, result: TrainingResult) -> Iterator[Row]:
    accuracy, data = result.last.accuracy, Path(case.data).name
    validation = 100 * mean(accuracy[d]["out"] for d in case.sources)
    for target in result.last.trial.test_domains:
        hit = 100 * accuracy[target]["all"]
        yield Row(case.candidate, data, "+".join(case.sources), target, case.seed, round(hit, 2), round(validation, 2))


def table(rows: list[Row]) -> Iterator[str]:
    """Yield a line for each candidate and data set: accuracy, gain over the start, and deviation between seeds."""
    start = {r[1:5]: r.accuracy for r in rows if r.candidate == "start"}
    yield "| data | candidate | left out, % | over the start | better | between seeds | held-out sources, % |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: |"
    for data, name in dict.fromkeys((r.data, r.candidate) for r in rows):
        own = [r for r in rows if (r.data, r.candidate) == (data, name)]
        gains = [r.accuracy - start[r[1:5]] for r in own if r[1:5] in start]
        yield (
            f"| {data} | {name} | {mean(r.accuracy for r in own):.1f} | {f'{mean(gains):+.1f}' if gains else '–'} "
            f"| {sum(g > 0 for g in gains)} of {len(gains)} | {between_seeds(own)} "
            f"| {mean(r.validation for r in own):.1f} |"
        )


def between_seeds(rows: list[Row]) -> str:
    """Return the standard deviation between seeds, pooled over the cases."""
    cases: dict[tuple[str, str, str], list[float]] = {}
    for r in rows:
        cases.setdefault((r.data, r.sources, r.target), []).append(r.accuracy)
    variances = [float(np.var(values, ddof=1)) for values in cases.values() if len(values) > 1]
    return f"{np.sqrt(mean(variances)):.1f}" if variances else "–"


def published(path: Path, names: Sequence[str]) -> list[Row]:
    """Return the rows of candidates that are not asked for now; they stay as they were."""
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        found = [Row(**line) for line in csv.DictReader(file)]
    numbers = [r._replace(seed=int(r.seed), accuracy=float(r.accuracy), validation=float(r.validation)) for r in found]
    return [r for r in numbers if names and r.candidate not in names]


def main(options: Options) -> None:
    file = options.records / "recipe_selection.csv"
    rows = [*published(file, options.names), *measure(options)]
    write_rows(file, rows, Row._fields)
    print(*table(rows), sep="\n")


if __name__ == "__main__":
    run_command("recipe_selection", main, Options(), __doc__)
