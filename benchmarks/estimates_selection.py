"""Choose the settings of the combined estimator on source domains only, and print them.

For every pair of domains of a data set: a model trained on the two, as in benchmarks.itta_plus_selection, and each of
the others as its target. Two sources to train on and a third to try on is what somebody has before a target comes.
The statistics with the lowest root mean squared error of the accuracy are chosen first, then the penalty, then the
trust in confidence, then the widening with which nine of ten intervals hold the truth. What was tried goes to a CSV
file, what was chosen to a JSON file, against which a test holds the code. The same command goes on after an
interruption.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
from torch import Tensor

from benchmarks.command import run_command, write_rows
from benchmarks.estimates import evidence_of, kept_answers, known_stand_ins
from benchmarks.itta_plus_grid import Stream
from benchmarks.itta_plus_selection import Options as PairOptions
from benchmarks.quick_models import name_of, quick_models
from itta.estimators.base import Evidence
from itta.estimators.combined import Combined, Settings
from itta.files import replace_text
from itta.models.stand_ins import StandIns
from itta.seeds import derive_seed
from itta.store.model import load

SUPPORTS = ("support", "support of restyled", "support of prototypes", "support of neighbours")
ALONE = ("confidence", "atc", "nuclear norm", "skew", "diversity", *SUPPORTS)
PENALTIES = (0.01, 0.02, 0.05, 0.1, 0.2)
TRUSTS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3)
START = Settings(widening=1.0, gain_widening=1.0, ridge=0.05, trust=0.0)
COVERED = 0.9


@dataclass(frozen=True)
class Options(PairOptions):
    seeds: int = 2  # of the models; those of seed 0 are shared with the selection of itta+


class Cell(NamedTuple):
    name: str
    evidence: Evidence
    known: StandIns
    labels: Tensor


@dataclass(frozen=True)
class Tried:
    setting: str
    value: str
    mean_error: float  # points
    root_mean_square: float
    worst: float
    bias: float


def collect(options: Options) -> Iterator[Cell]:
    for trial, folder, dataset in quick_models(options, seeds=options.seeds, pairs=True):
        trained = load(folder)
        known = known_stand_ins(options.out, folder, trained, dataset, trial)
        assert known is not None
        for target in trial.test_domains:
            domain = dataset.domain(target)
            drawn = np.random.RandomState(derive_seed(trial.trial_seed, "grid", target)).permutation(len(domain))
            stream = Stream(f"estimate@{target}", 16, 0, domain, drawn[: options.images])
            kept = kept_answers(options.out, folder, trained, stream, ("itta+",))
            yield Cell(f"{name_of(trial)}@{target}", evidence_of(trained, kept, "itta+"), known, kept["labels"])


def errors(cells: list[Cell], settings: Settings) -> np.ndarray:
    """[cells, 4]: error of accuracy and of gain, each followed by the half width of its interval; in points."""
    found = []
    for cell in cells:
        e = Combined(settings).estimate(cell.evidence, cell.known)
        right, after = ((a == cell.labels).float().mean() for a in (cell.evidence.answers, cell.evidence.after))
        gain = e.gain.value - float(after - right)
        found.append(
            [e.before.value - float(right), max(e.before.high - e.before.value, e.before.value - e.before.low)]
        )
        found[-1] += [gain, e.gain.high - e.gain.value]
    return 100 * np.array(found)


def score(setting: str, value: object, e: np.ndarray) -> Tried:
    numbers = (np.abs(e).mean(), math.sqrt((e**2).mean()), np.abs(e).max(), e.mean())
    return Tried(setting, str(value), *(round(float(v), 2) for v in numbers))


def choose(cells: list[Cell]) -> tuple[Settings, list[Tried]]:
    tried: list[Tried] = []

    def best(setting: str, values: list[object], start: Settings, column: int) -> Settings:
        options = [replace(start, **{setting: value}) for value in values]
        scores = [score(setting, v, errors(cells, s)[:, column]) for v, s in zip(values, options)]
        tried.extend(scores)
        return options[int(np.argmin([s.root_mean_square for s in scores]))]

    sets: list[object] = [c for n in (1, 2, 3) for c in combinations(ALONE, n)]
    plain: list[object] = [c for c in sets if not any(name.startswith("support") for name in c)]  # type: ignore[attr-defined]
    chosen = best("accuracy_from", sets, START, 0)
    without = best("accuracy_from", plain, START, 0).accuracy_from
    gains: list[object] = [("believed gain",), ("believed gain", "changed")]  # a share of changes has no direction
    chosen = best("gain_from", gains, chosen, 2)
    chosen = best("ridge", list(PENALTIES), chosen, 0)
    chosen = best("trust", list(TRUSTS), chosen, 0)
    e = errors(cells, chosen)
    widening, gain_widening = (np.quantile(np.abs(e[:, i]) / e[:, i + 1], COVERED, method="higher") for i in (0, 2))
    numbers = {"widening": round(float(widening) + 0.05, 1), "gain_widening": round(float(gain_widening) + 0.05, 1)}
    return replace(chosen, without_opinions=without, **numbers), tried


def main(options: Options) -> None:
    cells = list(collect(options))
    chosen, tried = choose(cells)
    write_rows(options.records / "estimates_selection.csv", (asdict(t).values() for t in tried), asdict(tried[0]))
    replace_text(options.records / "estimates_selection.json", json.dumps(asdict(chosen), indent=2) + "\n")
    e = errors(cells, chosen)
    print(json.dumps(asdict(chosen), indent=2))
    for cell, row in zip(cells, e):
        print(cell.name, *(f"{v:.1f}" for v in row))
    held = [np.mean(np.abs(e[:, i]) <= e[:, i + 1]) for i in (0, 2)]
    print(
        f"{len(cells)} cells; error {np.abs(e[:, 0]).mean():.2f}, of the gain {np.abs(e[:, 2]).mean():.2f}; held {held}"
    )


if __name__ == "__main__":
    run_command("estimates_selection", main, Options(), __doc__)
