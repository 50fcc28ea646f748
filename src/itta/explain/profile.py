"""The profile of a model: parameters, FLOPs, time and memory of predicting and adapting a batch.

Memory includes the batch, the weights, the adapter's additions to them, gradients, the optimiser's moments, activations
and temporaries, from the making of the adapter to the end of its second batch; the first batch has no moments yet.
`resource_counters` defines FLOPs.
"""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from itta.adapters import Adapter, adapt, find_adapter
from itta.adapters.gradient import GradientAdapter
from itta.adapters.itta import ITTA
from itta.algorithms import Algorithm, Task, find_algorithm
from itta.errors import InputError
from itta.explain.resource_counters import count_flops, peak_memory, wait_for_gpu
from itta.hparams import default
from itta.models.source_statistics import fisher_information
from itta.models.trained import Trained, frozen_copy
from itta.nn import Backbone, make_backbone
from itta.nn.batch_norm import has_batch_norm
from itta.nn.device import place, resolve_device
from itta.nn.style_bank import collect_styles
from itta.nn.style_mixing import MixDraw
from itta.progress import ReportProgress, silent
from itta.settings import ComputeSettings

Seeds = Sequence[int | None]
Call = Callable[[Adapter, Tensor, int | None], None]
EVERY_IMAGE = 2.0  # a margin above the entropy of any image
AT_WORK: dict[str, dict[str, Any]] = {  # settings with which a method does all its work, also on random images
    "eata": {"margin": EVERY_IMAGE, "redundancy": 1e9},
    "sar": {"margin": EVERY_IMAGE, "recover": 0.0},
}


@dataclass(frozen=True)
class Mode:
    """A way to predict a batch: an adapter and its settings."""

    name: str
    adapter: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Cost:
    """The cost of one batch."""

    parameters: int
    flops: float
    median_ms: float
    p95_ms: float
    peak_bytes: float


@dataclass(frozen=True)
class Usage:
    """The costs of a mode at a batch size; if the mode refuses such batches, the reason alone."""

    mode: Mode
    batch: int
    inference: Cost | None = None  # prediction without adaptation, by the network with the adapter's additions
    adaptation: Cost | None = None  # without the prediction, if that takes a pass of its own
    both: Cost | None = None
    refused: str = ""


@dataclass(frozen=True)
class Network:
    """A network by name. It is measured with random weights: they do not change the cost."""

    backbone: str = "resnet18"
    image_size: int = 224
    classes: int = 7

    def __post_init__(self) -> None:
        for name, least in (("image_size", 1), ("classes", 2)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, got {getattr(self, name)}.")

    def make_backbone(self) -> Backbone:
        return make_backbone(self.backbone, "none", self.image_size).freeze_bn()

    def untrained(self, algorithm: str) -> Algorithm:
        """A model with every statistic that adapters take from training."""
        cls = find_algorithm(algorithm)
        task = Task(tuple(map(str, range(self.classes))), ("domain",), self.image_size, self.make_backbone)
        torch.manual_seed(0)
        model = cls(task, default(cls.Hparams)).eval()
        x = torch.rand(4, 3, self.image_size, self.image_size)
        model.style_bank = collect_styles(model.backbone, {"domain": [model.inputs(x)]}, model.backbone.block_names[:2])
        model.fisher = fisher_information(model, [x]) if has_batch_norm(model.backbone) else None
        return model


def default_modes(model: Trained) -> list[Mode]:
    """The plain model and ITTA in three forms; without the learned loss if the model has none."""
    last = model.backbone.block_names[-1]
    loss = {} if hasattr(model, "f_w") else {"objective": "plain"}
    forms: dict[str, dict[str, Any]] = {
        "itta": {},
        "itta, last block": {"blocks": (last,)},
        "itta, per channel": {"per": "channel"},
    }
    return [Mode("source", "source", {}), *(Mode(name, "itta", loss | form) for name, form in forms.items())]


def modes_of(adapters: Sequence[str]) -> list[Mode]:
    """The plain model and these adapters, without a guard; their settings make them learn from every image."""
    names = ["source", *(name for name in adapters if name != "source")]
    return [Mode(name, find_adapter(name).name, AT_WORK.get(name, {})) for name in names]


def profile_model(
    model: Trained | Network,
    adapters: Sequence[str] = (),
    batches: Sequence[int] = (1, 8, 32),
    repeats: int = 10,
    report: ReportProgress = silent,
    compute: ComputeSettings = ComputeSettings(device="cpu"),
) -> list[Usage]:
    """Measure the plain model and these adapters, or ITTA in three forms, at every batch size."""
    for name, n in (("the batch size", min(batches, default=0)), ("repeats", repeats)):
        if n < 1:
            raise InputError(f"{name} must be at least 1, got {n}.")
    if resolve_device(compute.device).type == "mps":
        raise InputError("torch does not count the peak memory of the device mps: add --device cpu.")
    found = []
    for mode in modes_of(adapters) if adapters else default_modes(model_for(model, "itta")):
        needed = find_adapter(mode.adapter).needs.training or "itta"
        trained = place(model_for(model, needed), compute.device, compute.precision)
        for i, batch in enumerate(batches):
            report(mode.name, i, len(batches))
            found.append(measure_usage(trained, mode, batch, repeats))
        report(mode.name, len(batches), len(batches))
    return found


def model_for(model: Trained | Network, algorithm: str) -> Trained:
    return model.untrained(algorithm) if isinstance(model, Network) else model


def measure_usage(trained: Trained, mode: Mode, batch: int, repeats: int) -> Usage:
    torch.manual_seed(0)
    size, like = trained.image_size, next(trained.parameters())
    x = torch.rand(batch, 3, size, size).to(like)
    make = partial(adapt, trained, mode.adapter, guard=False, **mode.settings)
    adapter = make()
    try:
        adapter.check(x)
        seeds = seeds_of_round(adapter, batch)
    except InputError as error:
        return Usage(mode, batch, refused=str(error))
    predict = frozen_prediction(adapter, trained)
    needed = used_parameters(predict, x[:1])

    def anew() -> None:
        predict_batch(copy.deepcopy(predict), x.clone())

    inference = measure_cost([partial(predict_batch, predict, x)], anew, needed, repeats)
    if mode.adapter == "source":
        return Usage(mode, batch, inference)
    needed = needed | added_parameters(adapter)
    adaptation, both = (adapter_cost(make, call, x, seeds, needed, repeats) for call in (adapt_only, adapt_and_predict))
    return Usage(mode, batch, inference, adaptation, both)


def adapter_cost(
    make: Callable[[], Adapter], call: Call, x: Tensor, seeds: Seeds, parameters: Mapping[str, int], repeats: int
) -> Cost:
    """The cost of a call of an adapter, averaged over a round of calls."""
    adapter = make()

    def anew() -> None:
        own, images = make(), x.clone()
        for seed in (*seeds, *seeds):
            call(own, images, seed)

    return measure_cost([partial(call, adapter, x, seed) for seed in seeds], anew, parameters, repeats)


def measure_cost(
    calls: Sequence[Callable[[], object]], anew: Callable[[], object], parameters: Mapping[str, int], repeats: int
) -> Cost:
    """Count and time a round of calls; ``anew`` repeats it with all its tensors made inside, to measure memory."""
    flops = sum(count_flops(call) for call in calls) / len(calls)  # also warms up
    ms = []
    for call in (*calls, *list(calls) * repeats):
        began = time.perf_counter()
        call()
        wait_for_gpu()
        ms.append(1e3 * (time.perf_counter() - began))
    median, p95 = np.percentile(ms[len(calls) :], (50, 95))
    return Cost(sum(parameters.values()), flops, float(median), float(p95), peak_memory(anew))


def adapt_and_predict(adapter: Adapter, x: Tensor, seed: int | None) -> None:
    seed_views(adapter, seed)
    adapter(x)


def adapt_only(adapter: Adapter, x: Tensor, seed: int | None) -> None:
    seed_views(adapter, seed)
    adapter.observe(x)


@torch.no_grad()
def predict_batch(module: nn.Module, x: Tensor) -> None:
    module(x)


def seed_views(adapter: Adapter, seed: int | None) -> None:
    if seed is not None and isinstance(adapter, GradientAdapter):
        adapter.generator.manual_seed(seed)


def seeds_of_round(adapter: Adapter, n: int) -> Seeds:
    """Seeds of calls with n images each; together the calls do everything that the adapter ever does.

    The cost of ITTA depends on the block after which the two views part, so each block gets a call. A method that
    learns after every N images gets enough calls for N images.
    """
    if not isinstance(adapter, ITTA):
        return [None] * -(-getattr(adapter.hp, "every", 1) // n)
    blocks: dict[str, int] = {}
    for seed in range(64):
        adapter.generator.manual_seed(seed)
        draw = adapter.draw_view(n)
        blocks.setdefault(draw.block if isinstance(draw, MixDraw) else "", seed)
    adapter.reset()
    return list(blocks.values())


def frozen_prediction(adapter: Adapter, trained: Trained) -> nn.Module:
    """Images to logits without adaptation, by the network with the adapter's additions, or else by the plain model."""
    try:
        return adapter.frozen()
    except InputError:
        return frozen_copy(trained)


def used_parameters(predict: nn.Module, x: Tensor) -> dict[str, int]:
    """The parameters that the prediction depends on, name -> size; a trained model may have others."""
    own = dict(predict.requires_grad_().named_parameters())
    with torch.enable_grad():
        found = torch.autograd.grad(predict(x).sum(), list(own.values()), allow_unused=True)
    predict.requires_grad_(False)
    return {name.removeprefix("model."): p.numel() for (name, p), g in zip(own.items(), found) if g is not None}


def added_parameters(adapter: Adapter) -> dict[str, int]:
    """The parameters that the adapter changes, and those of networks that training made for it; name -> size."""
    own = dict(adapter.moving) if isinstance(adapter, GradientAdapter) else {}
    if adapter.needs.training:
        own |= dict(adapter.model.named_parameters())
    return {name: p.numel() for name, p in own.items()}
