"""How often the comparison of `itta report --compare` is wrong.

Simulates experiments in which two rows are alike: the difference of a run is an effect of its target plus noise, both
with standard deviation 1 and mean 0. Counts how often the 95 % interval misses 0, how often the sign-flip test says
p < 0.05, and how often Friedman's and Nemenyi's tests find a difference among five rows that are alike. For comparison,
the last column tests the pairs as if they were independent. Ends with status 1 if a rate of normal effects is above 6 %
or a coverage below 93 %.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from itta.metrics.significance import FEWEST_TARGETS, rank_statistics, sign_flip_p, t_interval

DESIGNS = ((4, 3), (4, 60), (6, 3), (8, 3), (12, 3))  # targets, runs of each
ROWS = 5  # of the ranks
BLOCK = 2_000  # experiments at once
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
EFFECTS: dict[str, Draw] = {  # of targets: mean 0, standard deviation 1
    "normal": lambda rng, size: rng.standard_normal(size),
    "uniform": lambda rng, size: rng.uniform(-(3**0.5), 3**0.5, size),
    "heavy tails": lambda rng, size: rng.standard_t(3, size) / 3**0.5,
    "one-sided": lambda rng, size: rng.exponential(size=size) - 1,
}
LARGEST_RATE, SMALLEST_COVERAGE = 0.06, 0.93


@dataclass(frozen=True)
class Options:
    experiments: int = 20_000
    seed: int = 0
    json: bool = False  # print one JSON object and nothing else


@dataclass(frozen=True)
class Rates:
    coverage: float  # of the 95 % interval
    alarms: float | None  # of the sign-flip test; None if there are too few targets for a p-value
    friedman: float
    nemenyi: float
    pairs_alarms: float  # of a t test on all pairs


def measure(options: Options, targets: int, runs: int, draw: Draw) -> Rates:
    rng = np.random.default_rng(options.seed)
    covered = alarms = by_pairs = 0
    for start in range(0, options.experiments, BLOCK):
        n = min(BLOCK, options.experiments - start)
        pairs = draw(rng, (n, targets, 1)) + rng.standard_normal((n, targets, runs))
        means = pairs.mean(-1)
        low, high = t_interval(means)
        covered += int(((low <= 0) & (high >= 0)).sum())
        alarms += int((sign_flip_p(means) < 0.05).sum()) if targets >= FEWEST_TARGETS else 0
        low, high = t_interval(pairs.reshape(n, -1))
        by_pairs += int(((low > 0) | (high < 0)).sum())
    friedman, nemenyi = rank_alarms(rng, options.experiments // 10, (targets, runs), draw)
    share = alarms / options.experiments if targets >= FEWEST_TARGETS else None
    return Rates(covered / options.experiments, share, friedman, nemenyi, by_pairs / options.experiments)


def rank_alarms(rng: np.random.Generator, experiments: int, design: tuple[int, int], draw: Draw) -> tuple[float, float]:
    """Shares of experiments in which Friedman's test, and Nemenyi's for any two rows, find a difference."""
    targets, runs = design
    friedman = nemenyi = 0
    for _ in range(experiments):
        table = draw(rng, (targets, ROWS)) + rng.standard_normal((targets, ROWS)) / runs**0.5
        mean, p, difference = rank_statistics(table)
        friedman += p < 0.05
        nemenyi += bool(np.ptp(mean) >= difference)
    return friedman / experiments, nemenyi / experiments


def acceptable(rates: Rates) -> bool:
    alarms = (rates.alarms or 0.0, rates.friedman, rates.nemenyi)
    return rates.coverage >= SMALLEST_COVERAGE and max(alarms) <= LARGEST_RATE


def main() -> None:
    options = tyro.cli(Options, prog="python -m benchmarks.significance_rates", description=__doc__)
    found = {
        (effect, targets, runs): measure(options, targets, runs, draw)
        for effect, draw in EFFECTS.items()
        for targets, runs in DESIGNS
    }
    if options.json:
        print(json.dumps({f"{e}, {t} x {r}": asdict(rates) for (e, t, r), rates in found.items()}))
    else:
        table = Table(
            "effects", "targets × runs", "interval covers", "sign-flip", "Friedman", "Nemenyi", "t test on pairs"
        )
        for (effect, targets, runs), rates in found.items():
            numbers = (rates.coverage, rates.alarms, rates.friedman, rates.nemenyi, rates.pairs_alarms)
            cells = [f"{100 * x:.1f} %" if x is not None else "no p-value" for x in numbers]
            table.add_row(effect, f"{targets} × {runs}", *cells)
        Console().print(table)
    sys.exit(not all(acceptable(rates) for (effect, _, _), rates in found.items() if effect == "normal"))


if __name__ == "__main__":
    main()
