"""What the differences between the releases and our code do to a model, where this can be measured.

Trains ITTA on three styles of the emoji from the same start, with f_w's gradient as it is, times 0.1 (the release's
factor of L_align), and times 0 (the paper's Alg. 1 sets it to zero before the step). Then adapts the model to the
fourth style: ITTA with Adam and with SGD for Θ, and MEMO with the mean squared deviation of the batch (ours) and with
divisor n − 1 (the release). Every line compares with the first of its kind: the share of images with another answer,
the largest change of a logit, and the accuracy.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
import tyro
from rich.console import Console
from rich.table import Table
from torch import Tensor

from itta.adapters import adapt
from itta.algorithms import Task
from itta.algorithms import itta as training
from itta.algorithms.itta import ITTA
from itta.data import load_dataset
from itta.data.dataset import DomainDataset, split
from itta.data.loaders import TrainLoader
from itta.hparams import default
from itta.nn import batch_norm, make_backbone

SCALES = {"gradient of f_w": 1.0, "gradient of f_w × 0.1": 0.1, "gradient of f_w set to 0": 0.0}


@dataclass(frozen=True)
class Options:
    steps: int = 100  # of training
    batch: int = 16  # images of each source style
    images: int = 96  # of the target
    backbone: str = "efficientnet_lite0"
    weights: str = "imagenet"
    image_size: int = 64
    target: str = "noto-mono"
    json: bool = False  # print one JSON object and nothing else


@dataclass(frozen=True)
class Effect:
    answers: float  # share of images with another answer than the first line of its kind
    logits: float  # largest change of a logit
    accuracy: float
    f_w: float | None = None  # distance of f_w from the first line's, relative to the first line's way from its start


def train(options: Options, data: DomainDataset, scale: float) -> ITTA:
    """Train with the gradient of f_w times a factor."""
    domains = tuple(d for d in data.domains if d != options.target)
    loader = TrainLoader(data, split(data, 0), domains, options.batch, seed=0)
    task = Task(data.classes, domains, options.image_size, lambda: make_backbone(options.backbone, options.weights))
    torch.manual_seed(0)
    model = ITTA(task, default(ITTA.Hparams)).train()
    exact = training.w_gradient

    def scaled(*args: Any) -> list[Tensor]:
        return [scale * g for g in exact(*args)]

    training.w_gradient = scaled
    try:
        for step in range(options.steps):
            torch.manual_seed(step)
            model.update(loader.batches(step))
    finally:
        training.w_gradient = exact
    return model.eval()


@contextmanager
def unbiased_variance() -> Iterator[None]:
    """Divide the squared deviations of a batch by n − 1, as torch does for its running variance."""
    biased = batch_norm.channel_moments

    def moments(x: Tensor) -> tuple[Tensor, Tensor]:
        mean, var = biased(x)
        n = x.numel() // x.shape[1]
        return mean, var * n / (n - 1)

    batch_norm.channel_moments = moments
    try:
        yield
    finally:
        batch_norm.channel_moments = biased


def predict_stream(model: ITTA, method: str, x: Tensor, **settings: Any) -> Tensor:
    adapter = adapt(model, method, **settings)
    return torch.cat([adapter(part) for part in x.split(32)])


def compare(kind: dict[str, Tensor], y: Tensor) -> dict[str, Effect]:
    first = next(iter(kind.values()))
    return {
        name: Effect(
            (z.argmax(1) != first.argmax(1)).float().mean().item(),
            (z - first).abs().max().item(),
            (z.argmax(1) == y).float().mean().item(),
        )
        for name, z in kind.items()
    }


def measure(options: Options) -> dict[str, Effect]:
    data = load_dataset("emoji", image_size=options.image_size)
    images = data.domain(options.target)
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[: options.images].numpy()
    x, y = images.read(chosen).float() / 255, torch.from_numpy(images.labels[chosen])
    models = {name: train(options, data, scale) for name, scale in SCALES.items()}
    ways = {name: torch.cat([p.detach().flatten() for p in m.f_w.parameters()]) for name, m in models.items()}
    first, *_, start = ways.values()  # with a gradient of 0, f_w stays at its start
    found = compare({name: predict_stream(m, "itta", x) for name, m in models.items()}, y)
    way = (first - start).norm()
    found = {
        k: Effect(e.answers, e.logits, e.accuracy, float((ways[k] - first).norm() / way)) for k, e in found.items()
    }
    model = next(iter(models.values()))
    optimizers = {f"Θ by {o}": predict_stream(model, "itta", x, optimizer=o) for o in ("adam", "sgd")}
    memo = {"MEMO, divisor n": predict_stream(model, "memo", x[:32])}
    with unbiased_variance():
        memo["MEMO, divisor n − 1"] = predict_stream(model, "memo", x[:32])
    return found | compare(optimizers, y) | compare(memo, y[:32])


def main() -> None:
    options = tyro.cli(Options, prog="python -m benchmarks.deviations", description=__doc__)
    found = measure(options)
    if options.json:
        print(json.dumps({name: asdict(effect) for name, effect in found.items()}))
        return
    table = Table("", "other answers", "logits move by", "accuracy", "f_w differs by")
    for name, e in found.items():
        f_w = "" if e.f_w is None else f"{100 * e.f_w:.2g} %"
        table.add_row(name, f"{100 * e.answers:.1f} %", f"{e.logits:.2g}", f"{100 * e.accuracy:.1f} %", f_w)
    Console().print(table)


if __name__ == "__main__":
    main()
