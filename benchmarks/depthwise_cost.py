"""What depthwise convolutions cost in training, as products and as the CPU's convolutions: time.

Steps of ERM, of ITTA, and of MT3, which takes gradients of gradients, relative to a step of ERM with products, the
default.
"""

import statistics
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks import methods_cost, timing
from benchmarks.timing import Job, Result, compare, interleave
from itta.nn import conv

BASE = "erm"
METHODS = ("erm", "itta", "mt3")


@dataclass(frozen=True)
class Options(methods_cost.Options):
    rounds: int = 6  # rounds to time
    batch: int = 12  # images of each domain
    backbone: str = "efficientnet_lite0"  # one with depthwise convolutions
    only: tuple[str, ...] = METHODS  # these methods


def measure(options: Options) -> Result:
    torch.manual_seed(0)
    batches = options.batches()
    jobs = {}
    for name in dict.fromkeys((BASE, *options.only)):
        step = methods_cost.steps(methods_cost.build(name, options), batches)
        jobs[name] = step
        jobs[f"{name}, convolutions"] = Job(partial(without_products, step), 1)
    seconds = interleave(jobs, options.rounds, options.json)
    return Result(BASE, statistics.median(seconds[BASE]), {"time": compare(seconds, BASE)})


def without_products(step: Job) -> None:
    few, conv.FEW_PAIRS = conv.FEW_PAIRS, 0
    try:
        step.run()
    finally:
        conv.FEW_PAIRS = few


if __name__ == "__main__":
    timing.main("depthwise_cost", Options, measure, __doc__)
