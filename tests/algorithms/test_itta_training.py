"""ITTA's training step against the paper's form: double backward, separate passes, and Adam written out."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itta.algorithms import Algorithm, Task
from itta.algorithms.base import Batch
from itta.algorithms.itta import ITTA, PRESETS, Run
from itta.hparams import default
from itta.nn import make_backbone
from itta.nn.backbone import Backbone
from itta.nn.style_mixing import MixDraw, draw_mix, mix_style
from itta.nn.views import draw_noise

Build = Callable[..., Algorithm]
Batches = Callable[..., list[Batch]]


def l_align(g_main: Sequence[Tensor], g_wcont: Sequence[Tensor]) -> Tensor:
    """Return Eq. 5, with constant mean and deviation. (On millions of entries torch's std is exact to 1e-10 only.)"""

    def standard(gs: Sequence[Tensor]) -> Tensor:
        g = torch.cat([x.flatten() for x in gs])
        mean = g.detach().mean()
        std = ((g.detach() - mean).square().sum() / (g.numel() - 1)).sqrt()
        return (g - mean) / std

    return (standard(g_main).detach() - standard(g_wcont)).square().mean()


def double_backward(algorithm: ITTA, main: Tensor, wcont: Tensor) -> tuple[float, list[Tensor]]:
    """Return L_align and its gradient for w, as the paper computes it."""
    theta = algorithm.aligned_parameters()
    g_main = torch.autograd.grad(main, theta, retain_graph=True, materialize_grads=True)
    g_wcont = torch.autograd.grad(wcont, theta, create_graph=True, materialize_grads=True)
    loss = l_align(g_main, g_wcont)
    return loss.item(), list(torch.autograd.grad(loss, list(algorithm.f_w.parameters()), retain_graph=True))


def relative(got: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    off = torch.cat([(a - b).flatten() for a, b in zip(got, expected)])
    return float(off.norm() / torch.cat([b.flatten() for b in expected]).norm())


def calibrated_resnet18() -> Backbone:
    """A network with random weights and BN statistics from one pass, so that activations stay in a normal range."""
    backbone = make_backbone("resnet18", "none")
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
    backbone.train()(torch.rand(16, 3, 48, 48))
    return backbone.freeze_bn()


BACKBONES: dict[str, Callable[[], Backbone]] = {
    "resnet18": calibrated_resnet18,
    "resnet18 with live BN": lambda: make_backbone("resnet18", "none"),
    "efficientnet_lite0": lambda: make_backbone("efficientnet_lite0"),
    "small_cnn": lambda: make_backbone("small_cnn"),
}
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


def shaken(algorithm: ITTA) -> ITTA:
    """Change f_w from its start, where all its layers are equal."""
    with torch.no_grad():
        for p in algorithm.f_w.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return algorithm


CASES = [
    pytest.param(name, blocks, dtype, marks=[] if name == "small_cnn" else [pytest.mark.slow])
    for name in BACKBONES
    for blocks in ("all", "last")
    for dtype in (torch.float64, torch.float32)
    if name != "resnet18 with live BN" or (blocks, dtype) == ("all", torch.float64)
]


@pytest.mark.parametrize(("name", "align_blocks", "dtype"), CASES)
def test_gradient_of_f_w_is_that_of_double_backward(name: str, align_blocks: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    size = 48 if name != "small_cnn" else 16
    task = Task(("a", "b", "c"), ("d", "e"), size, BACKBONES[name])
    algorithm = shaken(ITTA(task, default(ITTA.Hparams, align_blocks=align_blocks)).to(dtype).train())
    x, y = torch.rand(4, 3, size, size, dtype=dtype), torch.tensor([0, 1, 2, 0])
    ways: dict[str, Callable[[Run], dict[str, float]]] = {"paper": algorithm.align, "shared": algorithm.update_together}
    for order, step in ways.items():
        run = algorithm.run(x, y)
        loss, expected = double_backward(algorithm, run.main, run.wcont)
        logs = step(run)
        got = [p.grad for p in algorithm.f_w.parameters()]
        assert relative(got, expected) <= TOLERANCE[dtype], order
        assert logs["align"] == pytest.approx(loss, rel=TOLERANCE[dtype])
        assert logs["align"] > 0.1


class Naive:
    """One ITTA step in its simplest form: separate passes for the views, double backward, Adam written out."""

    def __init__(self, algorithm: ITTA, naive_adam: Any) -> None:
        self.algorithm, hp = algorithm, algorithm.hp
        self.adam, self.adam_of_w = naive_adam(hp.lr, hp.weight_decay), naive_adam(hp.fw_lr_scale * hp.lr)

    def losses(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        a = self.algorithm
        if a.hp.view == "noise":
            draw = draw_noise(len(x), a.backbone.dim, a.hp.sfa_sigma)
            z = a.backbone(x)
            z_aug = draw.scale.double() * z + draw.shift.double()
        else:
            mix = draw_mix(len(x), a.backbone.block_names[:2], a.hp.mix_alpha)
            z, z_aug = a.backbone(x), a.backbone(x, lambda b, h: self.mixed(b, h, mix))
        if a.hp.resnet_dropout > 0:  # one mask for both views, stacked as in the pass
            keep = torch.rand_like(torch.cat([z, z_aug])) >= a.hp.resnet_dropout
            z, z_aug = ((t * k) / (1 - a.hp.resnet_dropout) for t, k in zip((z, z_aug), keep.chunk(2)))
        h = z - z_aug if a.hp.difference == "z-z'" else z_aug - z
        out = h
        for i, (weight, bias) in enumerate(zip(a.f_w.weight, a.f_w.bias), 1):
            out = weight * out + bias
            out = F.relu(out) if i < len(a.f_w.weight) else out
        return F.cross_entropy(a.head(z), y) + F.cross_entropy(a.head(z_aug), y), (out**2).mean()

    @staticmethod
    def mixed(block: str, z: Tensor, draw: MixDraw) -> Tensor:
        return mix_style(z, draw) if block == draw.block else z

    def step(self, x: Tensor, y: Tensor, aligns: bool) -> None:
        a, hp = self.algorithm, self.algorithm.hp
        theta_phi, w = a.main_parameters(), list(a.f_w.parameters())
        main, wcont = self.losses(x, y)
        gradients = torch.autograd.grad(main + hp.alpha * wcont, theta_phi, retain_graph=True)
        g_w = double_backward(a, main, wcont)[1] if aligns and hp.update_order == "shared" else None
        self.adam.step(theta_phi, gradients)
        if aligns and hp.update_order == "paper":
            g_w = double_backward(a, *self.losses(x, y))[1]
        if g_w is not None:
            self.adam_of_w.step(w, g_w)


VARIANTS: dict[str, dict[str, object]] = {
    "as is": {},
    "last block": {"align_blocks": "last"},
    "alpha": {"alpha": 0.3},
    "other difference": {"difference": "z'-z"},
    "noise": {"view": "noise"},
    "one layer": {"fw_depth": 1},
    "every other step": {"align_every": 2},
    "weight decay": {"weight_decay": 0.01},
    "dropout": {"resnet_dropout": 0.3},
}


@pytest.mark.parametrize("order", ["shared", "paper"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_three_steps_equal_the_naive_ones(
    order: str, variant: str, build: Build, toy_batches: Batches, naive_adam: Any
) -> None:
    settings = {"lr": 1e-3, "fw_lr_scale": 2.0, "update_order": order} | VARIANTS[variant]
    algorithm, twin = (shaken(build("itta", **settings).double()) for _ in range(2))
    naive, start = Naive(twin, naive_adam), {k: v.clone() for k, v in algorithm.state_dict().items()}
    for step in range(3):
        aligns = step % algorithm.hp.align_every == 0
        w_before = algorithm.f_w.weight.clone()
        batches = [(x.double(), y) for x, y in toy_batches(step, n=3)]
        torch.manual_seed(step)
        logs = algorithm.update(batches)
        torch.manual_seed(step)
        naive.step(torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches]), aligns)
        assert ("align" in logs) == aligns
        assert torch.equal(algorithm.f_w.weight, w_before) != aligns
        for key, value in twin.named_parameters():
            torch.testing.assert_close(algorithm.get_parameter(key), value, rtol=1e-9, atol=1e-9, msg=key)
    assert int(algorithm.step) == 3
    moved = [k for k, p in algorithm.named_parameters() if not torch.equal(p, start[k])]
    assert moved == [k for k, _ in algorithm.named_parameters()]


def test_the_two_orders_differ(build: Build, toy_batches: Batches) -> None:
    """After a step θ and φ are the same, and the gradient of w differs: the second pass has a new θ and a new view."""
    shared, paper = (shaken(build("itta", lr=1e-3, update_order=o).double()) for o in ("shared", "paper"))
    for algorithm in (shared, paper):
        torch.manual_seed(0)
        algorithm.update([(x.double(), y) for x, y in toy_batches(0)])
    torch.testing.assert_close(shared.head.weight, paper.head.weight, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(shared.f_w.weight.grad, paper.f_w.weight.grad, rtol=1e-2)


def test_align_every(build: Build, toy_batches: Batches) -> None:
    algorithm = build("itta", align_every=3, lr=1e-3)
    moved = []
    for step in range(7):
        before = algorithm.f_w.weight.clone()
        torch.manual_seed(step)
        algorithm.update(toy_batches(step))
        moved.append(not torch.equal(algorithm.f_w.weight, before))
    assert moved == [True, False, False, True, False, False, True]


@pytest.mark.parametrize("order", ["shared", "paper"])
def test_a_dead_f_w_gives_no_nan(order: str, build: Build, toy_batches: Batches) -> None:
    algorithm = build("itta", update_order=order, lr=1e-3)
    nn.init.zeros_(algorithm.f_w.weight)
    before = algorithm.head.weight.clone()
    logs = algorithm.update(toy_batches(0))
    assert (logs["consistency"], logs["align"], logs["cosine"]) == (0.0, 0.0, 0.0)
    assert all(torch.isfinite(p).all() for p in algorithm.parameters())
    assert (algorithm.f_w.weight == 0).all()
    assert not torch.equal(algorithm.head.weight, before)


@pytest.mark.slow
def test_alignment_gets_better_for_a_fixed_theta(build: Build, toy_batches: Batches) -> None:
    """With θ fixed, learning f_w lowers L_align."""
    algorithm = build("itta", fw_lr_scale=1.0, lr=1e-2)
    x, y = (torch.cat(parts) for parts in zip(*toy_batches(0)))
    losses = []
    for _ in range(30):
        torch.manual_seed(0)
        losses.append(algorithm.align(algorithm.run(x, y))["align"])
    assert min(losses) < losses[0] - 0.02  # not the last one: the loss jumps when a ReLU of f_w switches
    assert algorithm.head.weight.grad is None


def test_presets_and_defaults() -> None:
    assert PRESETS == {"paper": {}, "released": {"update_order": "paper", "difference": "z'-z"}}
    hp = default(ITTA.Hparams)
    assert (hp.fw_depth, hp.fw_lr_scale, hp.alpha, hp.mix_alpha) == (10, 0.1, 1.0, 0.1)
    assert (hp.align_every, hp.align_blocks, hp.update_order, hp.difference) == (1, "all", "shared", "z-z'")
    released = default(ITTA.Hparams, **PRESETS["released"])
    assert (released.update_order, released.difference) == ("paper", "z'-z")


def test_optimizers_share_nothing(build: Build) -> None:
    algorithm = build("itta", lr=1e-3, weight_decay=0.1)
    groups = {name: o.param_groups[0] for name, o in algorithm.optimizers.items()}
    main, f_w = ({id(p) for p in groups[name]["params"]} for name in ("main", "f_w"))
    assert main == {id(p) for p in algorithm.main_parameters()}
    assert f_w == {id(p) for p in algorithm.f_w.parameters()}
    assert (groups["main"]["lr"], groups["main"]["weight_decay"]) == (1e-3, 0.1)
    assert (groups["f_w"]["lr"], groups["f_w"]["weight_decay"]) == (pytest.approx(1e-4), 0.0)
