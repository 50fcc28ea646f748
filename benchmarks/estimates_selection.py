"""Choose the settings of the combined estimator on source domains only, and print them.

For every pair of domains of a data set: a model trained on the two, as in benchmarks.itta_plus_selection, and each of
the others as its target. Two sources to train on and a third to try on is what somebody has before a target comes.
All four statistics of the accuracy, or three of them, with the lowest root mean squared error are chosen first, then
the penalty; then the same for the gain; then the smallest widening with which nine of ten intervals hold the truth. The
whole choice is made again without each target domain, and tried on that domain: that error tells how much of the choice
is luck. What was tried goes to a CSV file, what was chosen to a JSON file, against which a test holds the code. The
same command continues after an interruption.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple

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

# A short list: the best of many sets on few cells is luck
POOL = ("confidence", "unexplained skew", "diversity", "support", "distance of early")
PENALTIES = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
START = Settings(widening=1.0, gain_widening=1.0, ridge=0.2, gain_ridge=1.0)
COVERED = 0.9
ACCURACY, GAIN = 0, 2  # columns of `errors`; the next one is half the width of the interval


@dataclass(frozen=True)
class Options(PairOptions):
    seeds: int = 2  # of the models; those of seed 0 are shared with the selection of itta+


class Cell(NamedTuple):
    name: str
    target: str
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
            yield Cell(f"{name_of(trial)}@{target}", target, evidence_of(trained, kept, "itta+"), known, kept["labels"])


class Search:
    """The errors of settings on all cells, each computed once."""

    def __init__(self, cells: list[Cell]) -> None:
        self.cells, self.targets = cells, np.array([cell.target for cell in cells])
        self.known: dict[Settings, np.ndarray] = {}

    def errors(self, settings: Settings) -> np.ndarray:
        """[cells, 4]: error of accuracy and of gain, each followed by the half width of its interval; in points."""
        if settings not in self.known:
            self.known[settings] = 100 * np.array([errors_of(cell, settings) for cell in self.cells])
        return self.known[settings]


def errors_of(cell: Cell, settings: Settings) -> list[float]:
    e = Combined(settings).estimate(cell.evidence, cell.known)
    right, after = (float((a == cell.labels).float().mean()) for a in (cell.evidence.answers, cell.evidence.after))
    half = max(e.before.high - e.before.value, e.before.value - e.before.low)
    return [e.before.value - right, half, e.gain.value - (after - right), e.gain.high - e.gain.value]


def score(setting: str, value: object, e: np.ndarray) -> Tried:
    numbers = (np.abs(e).mean(), math.sqrt((e**2).mean()), np.abs(e).max(), e.mean())
    return Tried(setting, str(value), *(round(float(v), 2) for v in numbers))


def choose(search: Search, used: np.ndarray) -> tuple[Settings, list[Tried]]:
    """Choose all settings on some of the cells; also return everything that was tried."""
    tried: list[Tried] = []

    def best(start: Settings, column: int, setting: str, values: Sequence[Any]) -> Settings:
        options = [replace(start, **{setting: value}) for value in values]
        scores = [score(setting, v, search.errors(s)[used, column]) for v, s in zip(values, options)]
        tried.extend(scores)
        return options[int(np.argmin([s.root_mean_square for s in scores]))]

    without = [c for n in (3, 2) for c in combinations(POOL[:3], n)]  # statistics that need no other opinion
    plain = best(START, ACCURACY, "accuracy_from", without).accuracy_from
    chosen = best(START, ACCURACY, "accuracy_from", [c for n in (5, 4, 3) for c in combinations(POOL, n)])
    chosen = best(chosen, ACCURACY, "ridge", PENALTIES)
    gains = [("believed gain",), ("believed gain", "changed")]  # a share of changes alone has no direction
    chosen = best(chosen, GAIN, "gain_from", gains)
    chosen = best(chosen, GAIN, "gain_ridge", PENALTIES)
    numbers = {name: widen(search, chosen, used, name) for name in ("widening", "gain_widening")}
    return replace(chosen, without_opinions=plain, **numbers), tried


def widen(search: Search, settings: Settings, used: np.ndarray, name: str) -> float:
    """The smallest widening with which ⌈(n + 1)·0.9⌉ of n intervals hold the truth, rounded up to a tenth.

    Half an interval is √((widening·a)² + b²), so a cell needs the widening √(error² − b²)/a.
    """
    column = ACCURACY if name == "widening" else GAIN
    least, one = (search.errors(replace(settings, **{name: w}))[used, column + 1] for w in (0.0, 1.0))
    error = search.errors(settings)[used, column]
    need = np.sqrt(np.maximum(error**2 - least**2, 0) / np.maximum(one**2 - least**2, 1e-9))
    rank = min(math.ceil((len(need) + 1) * COVERED), len(need))
    return math.ceil(10 * float(np.sort(need)[rank - 1])) / 10


def leave_domains_out(search: Search) -> np.ndarray:
    """The errors on each target domain with the settings that the cells of the other domains choose."""
    found = np.empty((len(search.targets), 4))
    for target in np.unique(search.targets):
        own = search.targets == target
        chosen, _ = choose(search, ~own)
        found[own] = search.errors(chosen)[own]
    return found


def overconfidence(cell: Cell) -> float:
    right = (cell.evidence.answers == cell.labels).float().mean()
    return 100 * float(cell.evidence.before.amax(1).mean() - right)


def tell(label: str, e: np.ndarray) -> str:
    held = [100 * np.mean(np.abs(e[:, i]) <= e[:, i + 1]) for i in (ACCURACY, GAIN)]
    mean = [np.abs(e[:, i]).mean() for i in (ACCURACY, GAIN)]
    return (
        f"{label}: {len(e)} cells; error {mean[0]:.2f}, interval holds {held[0]:.0f} %; "
        f"of the gain {mean[1]:.2f}, {held[1]:.0f} %"
    )


def main(options: Options) -> None:
    search = Search(list(collect(options)))
    chosen, tried = choose(search, np.ones(len(search.cells), dtype=bool))
    e, unseen = search.errors(chosen), leave_domains_out(search)
    for target in np.unique(search.targets):
        tried.append(score("all, chosen without the domain", target, unseen[search.targets == target, ACCURACY]))
    write_rows(options.records / "estimates_selection.csv", (asdict(t).values() for t in tried), asdict(tried[0]))
    replace_text(options.records / "estimates_selection.json", json.dumps(asdict(chosen), indent=2) + "\n")
    print(json.dumps(asdict(chosen), indent=2))
    for cell, row in zip(search.cells, e):
        print(cell.name, *(f"{v:.1f}" for v in row))
    print(f"average confidence: error {np.mean([abs(overconfidence(cell)) for cell in search.cells]):.2f}")
    print(tell("chosen", e))
    print(tell("chosen without the domain", unseen))


if __name__ == "__main__":
    run_command("estimates_selection", main, Options(), __doc__)
