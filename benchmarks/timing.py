"""Measure several jobs side by side, compare each with one of them, and print the ratios.

A round runs every job once, and a job is compared with the base of its own round, so what slows the whole machine down
for a while slows both and drops out of the ratio. The first round only warms up.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
import torch
import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from itta.algorithms import Task
from itta.errors import InputError
from itta.nn import make_backbone
from itta.nn.style_mixing import draw_mix


@dataclass(frozen=True)
class Options:
    rounds: int  # rounds to time
    image_size: int  # pixels on each side
    batch: int = 32  # images
    backbone: str = "resnet18"  # with random weights, which do not change the cost, and frozen statistics
    threads: int = field(default_factory=torch.get_num_threads)  # threads of torch; all, unless told
    processor_time: bool = False  # of this process, instead of the clock's; for --threads 1 on a busy machine
    json: bool = False  # print one JSON object {name: {"ratio": …, "spread": …}} and nothing else

    def __post_init__(self) -> None:
        for name, least in (("rounds", 1), ("image_size", 1), ("batch", 2), ("threads", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, got {getattr(self, name)}.")

    def task(self) -> Task:
        def backbone():  # type: ignore[no-untyped-def]
            return make_backbone(self.backbone, "none", self.image_size).freeze_bn()

        return Task(tuple("abcdefg"), ("domain",), self.image_size, backbone)

    @property
    def clock(self) -> Callable[[], float]:
        return time.process_time if self.processor_time else time.perf_counter

    def images(self) -> Tensor:
        return torch.rand(self.batch, 3, self.image_size, self.image_size)


@dataclass(frozen=True)
class Job:
    run: Callable[[], object]
    units: int  # how many steps or batches one run works through


class Ratio(NamedTuple):
    ratio: float
    spread: float


@dataclass(frozen=True)
class Result:
    base: str
    seconds: float  # of one unit of the base
    columns: Mapping[str, Mapping[str, Ratio]]  # what was measured -> job -> ratio to the base


Item = TypeVar("Item")
Chosen = TypeVar("Chosen", bound=Options)


def interleave(
    jobs: Mapping[str, Job],
    rounds: int,
    quiet: bool,
    before: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Time every job once per round, in seconds per unit, in an order drawn anew for each round.

    A job leaves caches, memory and clock rate behind for the next one, so none has a fixed place or neighbour.
    ``before`` is called before each job, and is not timed.
    """
    names, drawn = list(jobs), np.random.RandomState(0)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in watch(range(rounds + 1), "time", quiet):
        for name in drawn.permutation(names).tolist():
            before()
            began = clock()
            jobs[name].run()
            seconds[name].append((clock() - began) / jobs[name].units)
    return {name: of_rounds[1:] for name, of_rounds in seconds.items()}


def compare(values: Mapping[str, Sequence[float]], base: str) -> dict[str, Ratio]:
    """The median of each one's ratios to the base, pair by pair, and their interquartile range.

    >>> compare({"a": [2.0, 4.0, 2.0], "b": [3.0, 8.0, 5.0]}, "a")["b"]
    Ratio(ratio=2.0, spread=0.5)
    """
    found = {}
    for name, own in values.items():
        low, middle, high = np.percentile(np.divide(own, values[base]), (25, 50, 75))
        found[name] = Ratio(float(middle), float(high - low))
    return found


def mixing_seeds(batch: int, blocks: tuple[str, ...], draws: int) -> list[int]:
    """For each block a seed whose first draws of a view all mix after that block.

    What a step costs depends on the block, so jobs can only be compared when they draw the same, and each block
    equally often.
    """

    def drawn(seed: int) -> set[str]:
        generator = torch.Generator().manual_seed(seed)
        return {draw_mix(batch, blocks, 0.1, generator).block for _ in range(draws)}

    return [next(seed for seed in range(1000) if drawn(seed) == {block}) for block in blocks]


def watch(items: Sequence[Item], what: str, quiet: bool) -> Iterable[Item]:
    """Go through the items with a progress bar on stderr."""
    return track(items, what, console=Console(stderr=True), disable=quiet)


def main(name: str, options: type[Chosen], measure: Callable[[Chosen], Result], about: str | None) -> None:
    """Parse the command line, measure, print."""
    try:
        chosen = tyro.cli(options, prog=f"python -m benchmarks.{name}", description=about)
        torch.set_num_threads(chosen.threads)
        result = measure(chosen)
    except InputError as error:
        sys.exit(f"error: {error}")
    if chosen.json:
        print(json.dumps(flatten(result.columns)))
    else:
        show(result, chosen)


def flatten(columns: Mapping[str, Mapping[str, Ratio]]) -> dict[str, dict[str, float]]:
    """One entry per number; all but times say what they are.

    >>> flatten({"time": {"itta": Ratio(2.5, 0.1)}, "memory": {"itta": Ratio(1.4, 0.0)}})
    {'itta': {'ratio': 2.5, 'spread': 0.1}, 'itta memory': {'ratio': 1.4, 'spread': 0.0}}
    """
    return {
        job if column == "time" else f"{job} {column}": ratio._asdict()
        for column, ratios in columns.items()
        for job, ratio in ratios.items()
    }


def show(result: Result, options: Options) -> None:
    """Print an aligned table, one row per job."""
    table = Table("", *result.columns, box=SIMPLE_HEAD)
    for column in table.columns[1:]:
        column.justify = "right"
    for job in result.columns["time"]:
        cells = [ratios.get(job) for ratios in result.columns.values()]
        table.add_row(job, *["" if c is None else f"{c.ratio:.2f} ({c.spread:.2f})" for c in cells])
    console = Console(highlight=False)
    console.print(table)
    setting = f"{options.backbone}, {options.image_size}×{options.image_size}, batch {options.batch}, "
    if options.image_size == 0:  # several cases, which the rows name
        setting = ""
    console.print(f"Ratio to {result.base}, which takes {result.seconds * 1e3:.0f} ms, and its spread in brackets.")
    console.print(f"{setting}{options.threads} thread(s), {options.rounds} round(s).")
