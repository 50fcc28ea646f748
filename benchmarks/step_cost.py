"""What one training step costs, relative to a step of MixStyle with plain consistency: time and peak memory.

Every job draws the same view in a round, and each mixing point comes up equally often. ``itta every 5`` is the mean
over a whole cycle. The two ``double backward`` jobs do what ITTA does, but by differentiating through the backbone's
gradient: once in the paper's order of updates (as the released code does), once from a shared pass.

Memory is the highest sum of all tensors alive at one moment: parameters, gradients, Adam's moments, activations and
temporaries, from the building of the model to the end of its second step (the first has no moments yet). It is torch's
own account of its allocations, which is exact and repeatable. It leaves out what never passes torch's allocator, that
is the interpreter and the libraries with their scratch space.
"""

import statistics
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import timing
from benchmarks.timing import Job, Ratio, Result, compare, interleave, mixing_seeds, watch
from itta.algorithms import Algorithm, Task
from itta.algorithms.base import Batch, Logs
from itta.algorithms.consistency import Consistency
from itta.algorithms.erm import ERM
from itta.algorithms.itta import ITTA, Losses, Run, grad, set_gradients
from itta.data import load_dataset
from itta.data.dataset import split
from itta.data.loaders import TrainLoader
from itta.errors import unknown
from itta.explain.resource_counters import peak_memory
from itta.functional.gradients import alignment
from itta.functional.jvp import Tape
from itta.functional.transfers import fetch_numbers
from itta.hparams import default
from itta.nn import make_backbone
from itta.nn.views import mixing_points

COSINE_IMAGE_SIZE = 64


@dataclass(frozen=True)
class Options(timing.Options):
    rounds: int = 10  # rounds to time, and batches to average the cosine over
    image_size: int = 64  # pixels on each side
    only: tuple[str, ...] = ()  # these jobs beside the base; all, unless told
    cosine: bool = False  # also how well f_w's gradient from the last block agrees with the exact one, on real images


class DoubleBackward(ITTA):
    """ITTA with ∂L_align/∂w as autograd has it: backward through the backward pass of the whole backbone."""

    def update_together(self, run: Run) -> Logs:
        aligned, head = self.aligned_parameters(), list(self.head.parameters())
        run.tape = Tape()  # nothing is to be replayed, so nothing is kept for it
        g_main = grad(run.main, [*aligned, *head], keep_graph=True)
        set_gradients(head, g_main[len(aligned) :])
        g_wcont = torch.autograd.grad(run.wcont, aligned, create_graph=True)
        logs = self.align_through(g_main[: len(aligned)], g_wcont)
        set_gradients(aligned, [m.add_(w.detach(), alpha=self.hp.alpha) for m, w in zip(g_main, g_wcont)])
        self.optimizers["main"].step()
        return fetch_numbers(run.losses()) | logs

    def align(self, run: Run, losses: Losses | None = None) -> Logs:
        run.tape = Tape()
        g_main = grad(run.main, self.aligned_parameters(), keep_graph=True)
        g_wcont = torch.autograd.grad(run.wcont, self.aligned_parameters(), create_graph=True)
        return fetch_numbers(losses or {}) | self.align_through(g_main, g_wcont)

    def align_through(self, g_main: list[Tensor], g_wcont: tuple[Tensor, ...]) -> Logs:
        found = alignment(g_main, [g.detach() for g in g_wcont])
        assert found is not None
        v = [found.direction(m, g.detach()) for m, g in zip(g_main, g_wcont)]
        set_gradients(list(self.f_w.parameters()), torch.autograd.grad(g_wcont, list(self.f_w.parameters()), v))
        self.optimizers["f_w"].step()
        return {"align": float(found.loss), "cosine": float(found.cosine)}


BASE = "consistency"
JOBS: dict[str, tuple[type[Algorithm], dict[str, Any]]] = {
    "erm": (ERM, {}),
    BASE: (Consistency, {}),
    "itta": (ITTA, {}),
    "itta last": (ITTA, {"align_blocks": "last"}),
    "itta paper": (ITTA, {"update_order": "paper"}),
    "itta every 5": (ITTA, {"align_every": 5}),
    "itta double backward": (DoubleBackward, {"update_order": "paper"}),
    "itta double backward shared": (DoubleBackward, {}),
}


def measure(options: Options) -> Result:
    names = [name for name in JOBS if not options.only or name in (*options.only, BASE)]
    if unknown_names := set(options.only) - set(JOBS):
        raise unknown("job", min(unknown_names), list(JOBS))
    algorithms = {name: build(name, options) for name in names}
    batch = make_batch(options)
    seeds = mixing_seeds(
        options.batch, mixing_points(algorithms[BASE].backbone), draws=2
    )  # the paper's order draws twice
    jobs = {name: job(algorithm, batch, seeds) for name, algorithm in algorithms.items()}
    seconds = interleave(jobs, options.rounds, options.json)
    peaks = {
        name: [peak_memory(partial(two_steps, name, options, seed)) for seed in seeds]
        for name in watch(names, "memory", options.json)
    }
    columns = {"time": compare(seconds, BASE), "memory": compare(peaks, BASE)}
    if options.cosine:
        columns["cosine"] = {"itta last": last_block_cosine(options)}
    return Result(BASE, statistics.median(seconds[BASE]), columns)


def build(name: str, options: Options) -> Algorithm:
    cls, overrides = JOBS[name]
    torch.manual_seed(0)
    return cls(options.task(), default(cls.Hparams, **overrides)).train()


def make_batch(options: Options) -> Batch:
    return options.images(), torch.randint(options.task().n_classes, (options.batch,))


def job(algorithm: Algorithm, batch: Batch, seeds: list[int]) -> Job:
    """A whole cycle of steps for each seed."""

    def run() -> None:
        for seed in seeds:
            for _ in range(cycle(algorithm)):
                step(algorithm, batch, seed)

    return Job(run, len(seeds) * cycle(algorithm))


def step(algorithm: Algorithm, batch: Batch, seed: int) -> None:
    torch.manual_seed(seed)
    algorithm.update([batch])


def cycle(algorithm: Algorithm) -> int:
    return getattr(algorithm.hp, "align_every", 1)


def two_steps(name: str, options: Options, seed: int) -> None:
    """Build everything anew, take the first step and the next of its kind."""
    algorithm, batch = build(name, options), make_batch(options)
    for _ in range(cycle(algorithm) + 1):
        step(algorithm, batch, seed)


def last_block_cosine(options: Options) -> Ratio:
    """cos(∂L_align/∂w over the last block, the same over all of θ), mean and deviation over a training's first steps.

    On pretrained features and real images, since on noise it would say nothing: EfficientNet-Lite0 and the emoji.
    """
    dataset = load_dataset("emoji", image_size=COSINE_IMAGE_SIZE)
    domains = tuple(dataset.domains)
    loader = TrainLoader(dataset, split(dataset, 0), domains, max(1, options.batch // len(domains)), seed=0)
    task = Task(dataset.classes, domains, COSINE_IMAGE_SIZE, lambda: make_backbone("efficientnet_lite0"))
    torch.manual_seed(0)
    exact, last = (ITTA(task, default(ITTA.Hparams, align_blocks=blocks)).train() for blocks in ("all", "last"))
    cosines = []
    for i in watch(range(options.rounds), "cosine", options.json):
        last.load_state_dict(exact.state_dict())
        batches = loader.batches(i)
        for algorithm in (exact, last):
            torch.manual_seed(i)
            algorithm.update(batches)
        cosines.append(F.cosine_similarity(w_gradient(exact), w_gradient(last), dim=0).item())
    return Ratio(statistics.mean(cosines), statistics.pstdev(cosines))


def w_gradient(algorithm: ITTA) -> Tensor:
    return torch.cat([p.grad.flatten() for p in algorithm.f_w.parameters() if p.grad is not None])


if __name__ == "__main__":
    timing.main("step_cost", Options, measure, __doc__)
