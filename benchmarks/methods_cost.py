"""What a training step of every method costs, relative to a step of ERM on the same images: time.

Each method takes turns with ERM, one after another, so both meet the same moment of a noisy machine. Methods whose
steps are of several kinds have a row for each.
"""

import statistics
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks import timing
from benchmarks.timing import Job, Ratio, Result, compare, interleave, watch
from itta.algorithms import ALGORITHMS, Algorithm, Task
from itta.algorithms.base import Batch
from itta.hparams import default
from itta.nn import make_backbone
from itta.recipes import find_recipe

BASE = "erm"
# The steps of each kind: its name, and what the method's counter shows when such a step begins
KINDS: dict[str, dict[str, int | None]] = {
    "dann": {"dann generator": 0, "dann discriminator": 1},
    "cdann": {"cdann generator": 0, "cdann discriminator": 1},
    "metareg": {"metareg meta": 0, "metareg final": 10**6},
    "fishr": {"fishr": 10**6},  # with its penalty switched on, as are those below
    "irm": {"irm": 10**6},
    "vrex": {"vrex": 10**6},
}


@dataclass(frozen=True)
class Options(timing.Options):
    rounds: int = 10  # pairs of steps to time for each method
    image_size: int = 64  # pixels on each side
    batch: int = 16  # images of each domain
    domains: int = 3  # source domains
    only: tuple[str, ...] = ()  # these methods; all, unless told
    recipe: str = "none"  # whose hyper-parameters the methods have: quick aligns every fifth step of ITTA

    def task(self) -> Task:
        def backbone():  # type: ignore[no-untyped-def]
            return make_backbone(self.backbone, "none", self.image_size).freeze_bn()

        return Task(tuple("abcdefg"), tuple(f"domain {i}" for i in range(self.domains)), self.image_size, backbone)

    def batches(self) -> list[Batch]:
        return [(self.images(), torch.randint(7, (self.batch,))) for _ in range(self.domains)]


def measure(options: Options) -> Result:
    torch.manual_seed(0)
    batches = options.batches()
    base = steps(build(BASE, options), batches)
    times, base_seconds = {BASE: Ratio(1.0, 0.0)}, []
    for name in watch([n for n in options.only or ALGORITHMS if n != BASE], "time", options.json):
        algorithm = build(name, options)
        for kind, counter in KINDS.get(name, {name: None}).items():
            pair = {BASE: base, kind: steps(algorithm, batches, counter)}
            seconds = interleave(pair, options.rounds, quiet=True, clock=options.clock)
            times[kind] = compare(seconds, BASE)[kind]
            base_seconds += seconds[BASE]
    return Result(BASE, statistics.median(base_seconds), {"time": times})


def build(name: str, options: Options) -> Algorithm:
    cls = ALGORITHMS[name]
    chosen = find_recipe(options.recipe).hparams(name) | {"batch_size": options.batch}
    return cls(options.task(), default(cls.Hparams, **chosen)).train()


def steps(algorithm: Any, batches: list[Batch], counter: int | None = None) -> Job:
    """Steps of one kind, which the method tells by its counter; a whole cycle if ITTA aligns in some steps only."""
    cycle = getattr(algorithm.hp, "align_every", 1)

    def run() -> None:
        for _ in range(cycle):
            if counter is not None:
                algorithm.step.fill_(counter)
            algorithm.update(batches)

    return Job(run, cycle)


if __name__ == "__main__":
    timing.main("methods_cost", Options, measure, __doc__)
