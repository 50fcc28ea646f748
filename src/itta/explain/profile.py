"""What predicting and adapting cost: parameters, FLOPs, time and memory, for a batch of a size.

FLOPs are multiply-adds, each counted once: those of convolutions and matrix products by torch's own counter, and one
for every entry that is multiplied, divided or normalised, forward and backward, the optimiser's step included.
Additions alone, comparisons and pooling are not counted.

Memory is the highest sum of all tensors alive at one moment: the batch, the weights, what was added to them, gradients,
the optimiser's moments, activations and temporaries, from the making of the adapter to the end of its second batch (the
first has no moments yet). It is torch's own account of its allocations, exact and repeatable. It leaves out what never
passes torch's allocator, that is the interpreter and the libraries with their scratch space.
"""

import copy
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.profiler
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from itta.adapters import Adapter, adapt, find_adapter
from itta.adapters.base import frozen_copy
from itta.adapters.eata import fisher_information
from itta.adapters.gradient import GradientAdapter
from itta.adapters.itta import ITTA
from itta.algorithms import Algorithm, Task, find_algorithm
from itta.errors import InputError
from itta.hparams import default
from itta.nn import Backbone, make_backbone
from itta.nn.batch_norm import has_batch_norm
from itta.nn.style_bank import collect_styles
from itta.nn.style_mixing import MixDraw
from itta.report.paper import Resources
from itta.report.tables import Table

Report = Callable[[str, int, int], None]
Seeds = Sequence[int | None]
Call = Callable[[Adapter, Tensor, int | None], None]
EVERY = 2.0  # a margin no image's entropy reaches
AT_WORK: dict[str, dict[str, Any]] = {  # settings with which a method does all it can, also on images that mean nothing
    "eata": {"margin": EVERY, "redundancy": 1e9},
    "sar": {"margin": EVERY, "recover": 0.0},
}
aten = torch.ops.aten
BY_ENTRY = (
    *(aten.mul, aten.mul_, aten.div, aten.div_, aten.addcmul, aten.addcmul_, aten.addcdiv, aten.addcdiv_),
    *(aten.lerp, aten.lerp_, aten.native_batch_norm, aten._native_batch_norm_legit, aten.cudnn_batch_norm),
    *(aten._native_batch_norm_legit_no_training, aten.native_batch_norm_backward, aten.cudnn_batch_norm_backward),
    *(aten.native_group_norm, aten.native_group_norm_backward),
    *(aten.native_layer_norm, aten.native_layer_norm_backward),
)


@dataclass(frozen=True)
class Mode:
    """A way to predict a batch: an adapter and its settings."""

    name: str
    adapter: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Cost:
    """Of one batch."""

    parameters: int
    flops: float
    median_ms: float
    p95_ms: float
    peak_bytes: float


@dataclass(frozen=True)
class Usage:
    """A mode at a batch size; where the mode refuses such batches, only why."""

    mode: Mode
    batch: int
    inference: Cost | None = None  # prediction without adaptation, with what the adapter added in place
    adaptation: Cost | None = None  # without the prediction, where that takes a pass of its own
    both: Cost | None = None
    refused: str = ""


@dataclass(frozen=True)
class Network:
    """A network by name, to be measured with random weights, which do not change the cost."""

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
        """A model with all that adapters take along from training."""
        cls = find_algorithm(algorithm)
        task = Task(tuple(map(str, range(self.classes))), ("domain",), self.image_size, self.make_backbone)
        torch.manual_seed(0)
        model = cls(task, default(cls.Hparams)).eval()
        x = torch.rand(4, 3, self.image_size, self.image_size)
        model.style_bank = collect_styles(model.backbone, {"domain": [model.inputs(x)]}, model.backbone.block_names[:2])
        model.fisher = fisher_information(model, [x]) if has_batch_norm(model.backbone) else None
        return model


def default_modes(model: Algorithm) -> list[Mode]:
    """The plain model and ITTA in three forms; without the learned loss where the model has none."""
    last = model.backbone.block_names[-1]
    loss = {} if hasattr(model, "f_w") else {"objective": "plain"}
    forms: dict[str, dict[str, Any]] = {
        "itta": {},
        "itta, last block": {"blocks": (last,)},
        "itta, per channel": {"per": "channel"},
    }
    return [Mode("source", "source", {}), *(Mode(name, "itta", loss | form) for name, form in forms.items())]


def modes_of(adapters: Sequence[str]) -> list[Mode]:
    """The plain model and these adapters as they come, without a guard, and made to learn from every image."""
    names = ["source", *(name for name in adapters if name != "source")]
    return [Mode(name, find_adapter(name).name, AT_WORK.get(name, {})) for name in names]


def profile(
    model: Algorithm | Network,
    adapters: Sequence[str] = (),
    batches: Sequence[int] = (1, 8, 32),
    repeats: int = 10,
    report: Report = lambda name, done, total: None,
) -> list[Usage]:
    """Measure the plain model and these adapters, or ITTA in three forms, at every batch size."""
    for name, n in (("the batch size", min(batches, default=0)), ("repeats", repeats)):
        if n < 1:
            raise InputError(f"{name} must be at least 1, got {n}.")
    found = []
    for mode in modes_of(adapters) if adapters else default_modes(model_for(model, "itta")):
        trained = model_for(model, find_adapter(mode.adapter).needs.training or "itta")
        for i, batch in enumerate(batches):
            report(mode.name, i, len(batches))
            found.append(measure(trained, mode, batch, repeats))
        report(mode.name, len(batches), len(batches))
    return found


def model_for(model: Algorithm | Network, algorithm: str) -> Algorithm:
    return model.untrained(algorithm) if isinstance(model, Network) else model


def to_json(usages: Sequence[Usage]) -> dict[str, Any]:
    return {
        "flops": "multiply-adds, each counted once, of a batch",
        "memory": "bytes of all tensors alive at the worst moment, weights and batch included",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "rows": [asdict(u) for u in usages],
    }


COLUMNS: dict[str, Callable[[Cost, int], str]] = {  # of a batch of so many images
    "GFLOPs": lambda cost, batch: f"{cost.flops / batch / 1e9:.2f}",
    "M params": lambda cost, batch: f"{cost.parameters / 1e6:.2f}",
    "ms": lambda cost, batch: f"{cost.median_ms:.1f}",
    "p95 ms": lambda cost, batch: f"{cost.p95_ms:.1f}",
    "MiB": lambda cost, batch: f"{cost.peak_bytes / 2**20:.0f}",
}


def to_table(usages: Sequence[Usage], paper: Sequence[Resources] = ()) -> Table:
    """As the paper's table of resources, with adaptation alone as a third line; a batch size refused has dashes.

    The paper's own figures come last.
    """
    rows = []
    for u in usages:
        phases = {"predict": u.inference, "adapt": u.adaptation, "both": u.both}
        for phase, cost in phases.items():
            if cost is not None:
                cells = [column(cost, u.batch) for column in COLUMNS.values()]
                rows.append([u.mode.name, str(u.batch), phase, *cells])
        if u.refused:
            rows.append([u.mode.name, str(u.batch), "refused", *["-" for _ in COLUMNS]])
    for r in paper:
        printed = [f"{r.gflops:.2f}", f"{r.million_parameters:.2f}", f"{1000 * r.seconds:.0f}"]
        rows.append([f"{r.mode}, paper", "-", r.phase, *printed, *["-" for _ in range(len(COLUMNS) - len(printed))]])
    return Table("", ["", "batch", "", *COLUMNS], rows)


def measure(trained: Algorithm, mode: Mode, batch: int, repeats: int) -> Usage:
    torch.manual_seed(0)
    size, like = trained.task.image_size, next(trained.parameters())
    x = torch.rand(batch, 3, size, size).to(like)
    make = partial(adapt, trained, mode.adapter, guard=False, **mode.settings)
    adapter = make()
    try:
        adapter.check(x)
        seeds = one_round(adapter, batch)
    except InputError as error:
        return Usage(mode, batch, refused=str(error))
    predict = prediction(adapter, trained)
    needed = used_parameters(predict, x[:1])

    def anew() -> None:
        run(copy.deepcopy(predict), x.clone())

    inference = cost([partial(run, predict, x)], anew, needed, repeats)
    if mode.adapter == "source":
        return Usage(mode, batch, inference)
    needed = needed | added_parameters(adapter)
    adaptation, both = (cost_of(make, call, x, seeds, needed, repeats) for call in (observe, answer))
    return Usage(mode, batch, inference, adaptation, both)


def cost_of(
    make: Callable[[], Adapter], call: Call, x: Tensor, seeds: Seeds, parameters: Mapping[str, int], repeats: int
) -> Cost:
    """What a call of an adapter costs."""
    adapter = make()

    def anew() -> None:
        own, images = make(), x.clone()
        for seed in (*seeds, *seeds):
            call(own, images, seed)

    return cost([partial(call, adapter, x, seed) for seed in seeds], anew, parameters, repeats)


def cost(
    calls: Sequence[Callable[[], object]], anew: Callable[[], object], parameters: Mapping[str, int], repeats: int
) -> Cost:
    """The calls make up a round; ``anew`` does the same with everything that takes memory made inside."""
    flops = sum(count_flops(call) for call in calls) / len(calls)  # also warms up
    ms = []
    for call in (*calls, *list(calls) * repeats):
        began = time.perf_counter()
        call()
        ms.append(1e3 * (time.perf_counter() - began))
    median, p95 = np.percentile(ms[len(calls) :], (50, 95))
    return Cost(sum(parameters.values()), flops, float(median), float(p95), peak_memory(anew))


def answer(adapter: Adapter, x: Tensor, seed: int | None) -> None:
    seed_views(adapter, seed)
    adapter(x)


def observe(adapter: Adapter, x: Tensor, seed: int | None) -> None:
    seed_views(adapter, seed)
    adapter.observe(x)


@torch.no_grad()
def run(module: nn.Module, x: Tensor) -> None:
    module(x)


def seed_views(adapter: Adapter, seed: int | None) -> None:
    if seed is not None and isinstance(adapter, GradientAdapter):
        adapter.generator.manual_seed(seed)


def one_round(adapter: Adapter, n: int) -> Seeds:
    """Seeds for calls of n images that together show what there is: all that comes up by chance, or now and then.

    ITTA's cost depends on the block after which the views part, so each block gets a call; who learns every so many
    images gets as many calls as that takes.
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


def prediction(adapter: Adapter, trained: Algorithm) -> nn.Module:
    """Images to logits without adaptation, with what the adapter added in place; the plain model if it adds nothing."""
    try:
        return adapter.frozen()
    except InputError:
        return frozen_copy(trained)


def used_parameters(predict: nn.Module, x: Tensor) -> dict[str, int]:
    """Name -> size of the parameters that the prediction depends on; a trained model may hold others."""
    own = dict(predict.requires_grad_().named_parameters())
    with torch.enable_grad():
        found = torch.autograd.grad(predict(x).sum(), list(own.values()), allow_unused=True)
    predict.requires_grad_(False)
    return {name.removeprefix("model."): p.numel() for (name, p), g in zip(own.items(), found) if g is not None}


def added_parameters(adapter: Adapter) -> dict[str, int]:
    """Those that move, and where the method builds on networks that training made for it, these too."""
    own = dict(adapter.moving) if isinstance(adapter, GradientAdapter) else {}
    if adapter.needs.training:
        own |= dict(adapter.model.named_parameters())
    return {name: p.numel() for name, p in own.items()}


def count_flops(call: Callable[[], object]) -> float:
    """Multiply-adds of a call, see above."""
    with FlopCounterMode(display=False, custom_mapping=dict.fromkeys(BY_ENTRY, entries)) as counter:
        call()
    return counter.get_total_flops() / 2


def entries(*args: Any, out_shape: Any, **kwargs: Any) -> int:
    """As many multiply-adds as there are entries, in the counter's unit: two for each."""
    shape = next((s for s in out_shape if isinstance(s, torch.Size)), None) if type(out_shape) is tuple else out_shape
    return 2 * math.prod(shape or ())


def peak_memory(call: Callable[[], object]) -> float:
    """Bytes of the tensors alive at the worst moment, counting only those made in the call."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would announce itself on stderr
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return float(max(event["args"]["Total Allocated"] for event in events if event.get("name") == "[memory]"))
