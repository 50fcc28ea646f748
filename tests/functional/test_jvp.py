"""Oracle: torch.func.jvp, which runs the function again."""

import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from itta.functional.jvp import Tape
from itta.nn import make_backbone
from itta.nn.backbone import Backbone
from itta.nn.style_mixing import MixDraw
from itta.nn.views import two_views

Pass = Callable[[nn.Module, Tensor], Tensor]


def relative(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


def calibrated(name: str, size: int) -> Backbone:
    """Random weights with BN statistics that fit them, so that activations are neither dead nor huge."""
    torch.manual_seed(0)
    backbone = make_backbone(name, "none").double()
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
    backbone.train()(torch.rand(8, 3, size, size, dtype=torch.float64))
    return backbone


def both(module: nn.Module, run: Pass, x: Tensor) -> tuple[Tensor, Tensor]:
    """J·v along random tangents of all parameters, by the tape and by torch.func."""
    parameters = dict(module.named_parameters())
    tangents = {k: torch.randn_like(p) for k, p in parameters.items()}
    statistics = {k: b.clone() for k, b in module.named_buffers()}
    with Tape() as tape:
        z = run(module, x)
    got = tape.jvp({parameters[k]: v for k, v in tangents.items()}, z)

    class Ran(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: Tensor) -> Tensor:
            return run(self.inner, x)

    def function(values: dict[str, Tensor]) -> Tensor:
        state = values | {k: b.clone() for k, b in statistics.items()}  # torch.func may write only to its own tensors
        return functional_call(Ran(), {f"inner.{k}": v for k, v in state.items()}, (x,))

    assert torch.equal(z, function(parameters))  # the tape does not change the pass
    again, expected = torch.func.jvp(function, ({k: p.detach() for k, p in parameters.items()},), (tangents,))
    assert relative(again, z) <= 1e-12  # without gradients, a depthwise convolution takes another path
    return got, expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "efficientnet_lite0", "small_cnn"])
def test_networks_with_stored_statistics(name: str) -> None:
    backbone = calibrated(name, 64).eval()
    got, expected = both(backbone, lambda b, x: b(x), torch.rand(3, 3, 64, 64, dtype=torch.float64))
    assert expected.norm() > 0
    assert relative(got, expected) <= 1e-12


@pytest.mark.slow
def test_the_wheels_efficientnet_with_mixed_views() -> None:
    backbone = make_backbone("efficientnet_lite0").double().train()
    draw = MixDraw("block2", torch.rand(4), torch.tensor([1, 2, 3, 0]))

    def difference(b: nn.Module, x: Tensor) -> Tensor:
        z, z_aug = two_views(lambda after: b(x, after), draw)
        return z - z_aug

    got, expected = both(backbone, difference, torch.rand(4, 3, 64, 64, dtype=torch.float64))
    assert relative(got, expected) <= 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("block", ["layer1", "layer2"])
def test_resnet_with_batch_statistics_and_mixed_views(block: str) -> None:
    backbone = calibrated("resnet18", 64).train()
    draw = MixDraw(block, torch.rand(4), torch.tensor([3, 0, 1, 2]))

    def difference(b: nn.Module, x: Tensor) -> Tensor:
        z, z_aug = two_views(lambda after: b(x, after), draw)
        return z - z_aug

    got, expected = both(backbone, difference, torch.rand(4, 3, 64, 64, dtype=torch.float64))
    assert relative(got, expected) <= 1e-12


def test_running_statistics_move_once() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    x = torch.rand(5, 3, 8, 8)
    before = net[1].running_mean.clone()
    with Tape() as tape:
        z = net(x)
    once = [b.clone() for b in net.buffers()]
    tape.jvp({p: torch.randn_like(p) for p in net.parameters()}, z)
    assert not torch.equal(once[0], before)
    assert all(torch.equal(b, o) for b, o in zip(net.buffers(), once))


W = torch.randn(2, 6, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "add": lambda w: w + w.flip(0),
    "add with a factor": lambda w: torch.add(w, w.flip(0), alpha=3),
    "add, broadcast": lambda w: w + w[:, :1],
    "add a number": lambda w: 2 + w + 1,
    "subtract": lambda w: w - w.flip(0),
    "subtract with a factor": lambda w: torch.sub(w, w.flip(0), alpha=3),
    "subtract from a number": lambda w: 1 - w,
    "add in place": lambda w: (2 * w).add_(w.square()),
    "add in place with a factor": lambda w: torch.relu(w).add(w.flip(0), alpha=-2),
    "augmented sum": lambda w: augmented_sum(w),
    "multiply": lambda w: w * w.flip(0),
    "multiply, broadcast": lambda w: w * w.mean((2, 3), keepdim=True),
    "multiply by a constant": lambda w: 0.5 * w * torch.ones_like(w),
    "divide": lambda w: w / (2 + w.square()),
    "power": lambda w: (1 + w.square()) ** 0.5,
    "matmul": lambda w: w @ w.transpose(-1, -2),
    "einsum": lambda w: torch.einsum("bchw,bcvw->bhv", w, w),
    "gelu": F.gelu,
    "silu": F.silu,
    "hardswish": F.hardswish,
    "sigmoid": torch.sigmoid,
    "softmax": lambda w: w.softmax(-1),
    "log softmax": lambda w: F.log_softmax(w, 1),
    "layer norm": lambda w: F.layer_norm(w, (8,), w[0, 0, 0], w[0, 0, 1]),
    "group norm": lambda w: F.group_norm(w, 3),
    "attention": lambda w: F.scaled_dot_product_attention(w, w.flip(1), w.square()),
    "max pool": lambda w: F.max_pool2d(w, 2),
    "max pool with a border": lambda w: F.max_pool2d(w.square(), 3, stride=2, padding=1),
    "max pool of one image": lambda w: F.max_pool2d(w[0], 2),
    "max pool, channels last": lambda w: F.max_pool2d(w.contiguous(memory_format=torch.channels_last), 3, stride=1),
    "average pool": lambda w: F.avg_pool2d(w, 2),
    "largest": lambda w: w.max(1).values,
    "variance": lambda w: w.var(1),
    "pad": lambda w: F.pad(w, (1, 1, 0, 2)).square(),
    "pad with a value": lambda w: F.pad(w, (1, 1, 0, 2), value=3.0).square(),
    "choose": lambda w: torch.where(w > 0, w.square(), w),
    "concatenate": lambda w: torch.cat([w, torch.ones_like(w), w.square()], 1),
    "stack": lambda w: torch.stack([w, w.exp()]),
    "chunk": lambda w: w.chunk(3, 1)[1] * w.chunk(3, 1)[2],
    "index": lambda w: w[:, [0, 2, 2]] * w[:, :1],
    "reshape": lambda w: w.permute(0, 2, 3, 1).reshape(2, -1, 6).flatten(1).unsqueeze(1).square(),
    "unfold": lambda w: F.unfold(w, 3, padding=1),
    "relu": lambda w: F.relu(w) + F.relu6(5 * w) + F.relu(w.square() - 1, inplace=True),
    "convolution": lambda w: F.conv2d(w, w[:, :3, :3, :3], w[:, 0, 0, 0], stride=2, padding=1, groups=2),
    "convolution of a constant": lambda w: F.conv2d(torch.ones(1, 6, 4, 4).double(), w[:, :, :3, :3]),
    "bias of a convolution": lambda w: F.conv2d(W[:, :1], W[0, :, :1, :1, None], w[0, :, 0, 0]),
    "linear": lambda w: F.linear(w, w[0, 0], w[0, 1, 0]),
    "bias of a linear layer": lambda w: F.linear(torch.ones(3, 8).double(), torch.ones(8, 8).double(), w[0, 1, 0]),
    "weight of a stored normalisation": lambda w: stored_norm(w.detach(), w[0, :, 0, 0], w[0, :, 1, 0]),
    "bias of a stored normalisation": lambda w: stored_norm(w.detach(), None, w[0, :, 1, 0]),
    "input of a stored normalisation": lambda w: stored_norm(w, None, None),
    "normalisation without statistics": lambda w: F.batch_norm(w, None, None, w[0, :, 0, 0], None, training=True),
    "switched-off dropout": lambda w: F.dropout(F.dropout(w, 0.0), 0.5, training=False).square(),
    "the type it has": lambda w: w.square().type_as(w).to(w).contiguous().square(),
}  # fmt: skip


def augmented_sum(w: Tensor) -> Tensor:
    z = w.square()
    z += w
    z -= w.exp()
    z += 1.0
    return z.square()


def stored_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    mean, var = torch.linspace(-1, 1, 6).double(), torch.linspace(0.5, 2, 6).double()
    return F.batch_norm(x, mean, var, weight, bias)


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name: str) -> None:
    function = OPERATIONS[name]
    w, v = W.clone().requires_grad_(), torch.randn_like(W)
    with Tape() as tape:
        y = function(w)
    with sdpa_kernel(SDPBackend.MATH):  # only this backend has forward mode
        expected = torch.func.jvp(function, (W,), (v,))[1]
    assert expected.norm() > 0
    assert relative(tape.jvp({w: v}, y), expected) <= 1e-14


def test_only_some_tangents() -> None:
    """A parameter without a tangent does not move. An output that no tangent reaches has derivative 0."""
    a, b = torch.tensor([2.0, 3.0], requires_grad=True), torch.tensor([5.0, 7.0], requires_grad=True)
    with Tape() as tape:
        y, other = a * b + b, b.square()
    v = torch.tensor([1.0, -1.0])
    assert tape.jvp({a: v}, y).tolist() == [5.0, -7.0]
    assert tape.jvp({b: v}, y).tolist() == [3.0, -4.0]
    assert tape.jvp({a: v}, other).tolist() == [0.0, 0.0]


def test_an_inner_result_may_be_asked_for() -> None:
    w = torch.tensor([2.0], requires_grad=True)
    with Tape() as tape:
        inner = w.square()
        outer = inner.exp()
    assert tape.jvp({w: torch.ones(1)}, inner).item() == 4
    assert tape.jvp({w: torch.ones(1)}, outer).item() == pytest.approx(4 * torch.tensor(4.0).exp().item())


def test_constants_contribute_nothing() -> None:
    w = torch.tensor([2.0, 3.0], requires_grad=True)
    with Tape() as tape:
        with torch.no_grad():
            constant = w.square()
        y = w * w.detach() + constant
    assert tape.jvp({w: torch.ones(2)}, y).tolist() == [2.0, 3.0]


def test_what_happens_outside_is_not_recorded() -> None:
    w = torch.ones(3, requires_grad=True)
    tape = Tape()
    w.exp()
    with tape:
        pass
    assert tape.operations == []


def test_dropout_is_refused() -> None:
    w = torch.ones(3, requires_grad=True)
    with Tape(), pytest.raises(RuntimeError, match="mask"):
        nn.Dropout(0.5).train()(w)


@pytest.mark.parametrize(
    "change",
    [lambda z: z.mul_(2), lambda z: z.relu_(), lambda z: z.copy_(z.exp()), lambda z: z.__setitem__(0, z[1])],
    ids=["mul_", "relu_", "copy_", "setitem"],
)
def test_overwriting_is_refused(change: Callable[[Tensor], object]) -> None:
    w = torch.ones(3, requires_grad=True)
    with Tape(), pytest.raises(RuntimeError, match="a tape cannot replay"):
        change(2 * w)


def test_what_autograd_lets_go_is_let_go() -> None:
    """The tape frees the input of a ReLU and the terms of a sum, and keeps the input of a convolution."""
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4).eval()
    x = torch.rand(2, 3, 8, 8)

    def run() -> tuple[Tensor, dict[str, weakref.ref[Tensor]]]:
        convolved = conv(x)
        normed = norm(convolved)
        active = F.relu(normed)
        total = normed + active
        result = F.relu(total)
        seen = {"convolved": convolved, "normed": normed, "total": total, "active": active}
        return result, {name: weakref.ref(z) for name, z in seen.items()}

    with Tape() as tape:
        z, refs = run()
    alive = {name for name, ref in refs.items() if ref() is not None}
    assert alive == {"convolved", "active"}
    parameters = [*conv.parameters(), *norm.parameters()]
    v = tape.jvp({p: torch.randn_like(p) for p in parameters}, z)
    assert v.norm() > 0
