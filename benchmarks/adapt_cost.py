"""What adapting to a batch and predicting it costs, relative to plain prediction: time and counted FLOPs.

The view mixes after each of the two mixing points equally often. FLOPs are those of convolutions and matrix products,
forward and backward, by torch's own counter; f_Θ works entry by entry and shows in the time only.
"""

import statistics
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import timing
from benchmarks.timing import Job, Result, compare, interleave, mixing_seeds, watch
from itta.adapters import Adapter, adapt
from itta.adapters.itta import ITTA as IttaAdapter
from itta.algorithms.itta import ITTA
from itta.hparams import default

BASE = "source"


@dataclass(frozen=True)
class Options(timing.Options):
    rounds: int = 5  # rounds to time
    image_size: int = 224  # pixels on each side


def settings(last_block: str) -> dict[str, dict[str, Any]]:
    return {
        "itta": {},
        "itta channel": {"per": "channel"},
        "itta last": {"blocks": (last_block,)},
        "itta 2 steps": {"steps": 2},
        "itta 3 steps": {"steps": 3},
        "itta episodic": {"episodic": True},
    }


def measure(options: Options) -> Result:
    torch.manual_seed(0)
    trained = ITTA(options.task(), default(ITTA.Hparams))
    blocks = trained.backbone.block_names
    adapters = {BASE: adapt(trained, BASE)}
    adapters |= {name: adapt(trained, "itta", **hp) for name, hp in settings(blocks[-1]).items()}
    x, seeds = options.images(), mixing_seeds(options.batch, blocks[:2], draws=1)
    jobs = {name: job(adapter, x, seeds) for name, adapter in adapters.items()}
    seconds = interleave(jobs, options.rounds, options.json)
    flops = {
        name: [count_flops(adapters[name], x, seed) for seed in seeds]
        for name in watch(list(adapters), "flops", options.json)
    }
    columns = {"time": compare(seconds, BASE), "flops": compare(flops, BASE)}
    return Result(BASE, statistics.median(seconds[BASE]), columns)


def job(adapter: Adapter, x: Tensor, seeds: list[int]) -> Job:
    """One batch for each seed."""

    def run() -> None:
        for seed in seeds:
            call(adapter, x, seed)

    return Job(run, len(seeds))


def call(adapter: Adapter, x: Tensor, seed: int) -> None:
    if isinstance(adapter, IttaAdapter):
        adapter.generator.manual_seed(seed)
    adapter(x)


def count_flops(adapter: Adapter, x: Tensor, seed: int) -> float:
    with FlopCounterMode(display=False) as counter:
        call(adapter, x, seed)
    return float(counter.get_total_flops())


if __name__ == "__main__":
    timing.main("adapt_cost", Options, measure, __doc__)
