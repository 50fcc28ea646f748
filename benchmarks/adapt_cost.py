"""What adapting to a batch and predicting it costs, relative to plain prediction: time and counted FLOPs.

ITTA in several settings, and the other test-time methods that need no training of their own. ITTA's view mixes after
each of the two mixing points equally often. FLOPs are counted as `itta profile` does.
"""

import statistics
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks import timing
from benchmarks.timing import Job, Result, compare, interleave, mixing_seeds, watch
from itta.adapters import ADAPTERS, Adapter, adapt
from itta.adapters.itta import ITTA as IttaAdapter
from itta.algorithms.itta import ITTA
from itta.explain.profile import AT_WORK
from itta.explain.resource_counters import count_flops
from itta.hparams import default
from itta.models.source_statistics import fisher_information
from itta.nn.batch_norm import has_batch_norm
from itta.nn.style_bank import collect_styles

BASE = "source"
SLOW = ("cotta", "memo", "note", "rotta")


@dataclass(frozen=True)
class Options(timing.Options):
    rounds: int = 5  # rounds to time
    image_size: int = 224  # pixels on each side
    slow: bool = False  # also CoTTA, MEMO, NOTE and RoTTA


def settings(last_block: str, slow: bool = False) -> dict[str, tuple[str, dict[str, Any]]]:
    """Row -> method and settings; EATA and SAR learn from every image, or untrained they might from none."""
    return {
        "itta": ("itta", {}),
        "itta channel": ("itta", {"per": "channel"}),
        "itta last": ("itta", {"blocks": (last_block,)}),
        "itta 2 steps": ("itta", {"steps": 2}),
        "itta 3 steps": ("itta", {"steps": 3}),
        "itta episodic": ("itta", {"episodic": True}),
        "itta+": ("itta+", {}),
        "itta+ bare": ("itta+", {"guard": False}),
        "tent": ("tent", {}),
        "roid": ("roid", {}),
        "bn_adapt": ("bn_adapt", {}),
        "t3a": ("t3a", {}),
        "lame": ("lame", {}),
        "shot": ("shot", {}),
        "eata": ("eata", AT_WORK["eata"]),
        "sar": ("sar", AT_WORK["sar"]),
        **({name: (name, {}) for name in SLOW} if slow else {}),
    }


def measure(options: Options) -> Result:
    torch.manual_seed(0)
    trained, x = ITTA(options.task(), default(ITTA.Hparams)).eval(), options.images()
    blocks = trained.backbone.block_names
    trained.style_bank = collect_styles(trained.backbone, {"domain": [x]}, blocks[:2])
    adapters = {BASE: adapt(trained, BASE)}
    for row, (name, hp) in settings(blocks[-1], options.slow).items():
        if ADAPTERS[name].needs.batch_norm and not has_batch_norm(trained.backbone):
            continue
        trained.fisher = fisher_information(trained, [x]) if name == "eata" else None
        adapters[row] = adapt(trained, name, **hp)
    seeds = mixing_seeds(options.batch, blocks[:2], draws=1)
    jobs = {name: job(adapter, x, seeds) for name, adapter in adapters.items()}
    seconds = interleave(jobs, options.rounds, options.json, clock=options.clock)
    flops = {
        name: [count_flops(partial(call, adapters[name], x, seed)) for seed in seeds]
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


if __name__ == "__main__":
    timing.main("adapt_cost", Options, measure, __doc__)
