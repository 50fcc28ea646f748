"""ITTA at test time against a direct form of Alg. 2: every pass starts from the images, and nothing is shared."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from itta.adapters import Adapter, adapt
from itta.algorithms import Algorithm, Task
from itta.algorithms.base import Batch
from itta.algorithms.itta import ITTA as TrainedITTA
from itta.errors import InputError
from itta.hparams import default
from itta.nn import make_backbone
from itta.nn.style_mixing import MixDraw, mix_style

Trained = Callable[..., Algorithm]
Batches = Callable[..., list[Batch]]


@pytest.fixture
def stream(toy_batches: Batches) -> list[Tensor]:
    return [toy_batches(200 + i, n=12)[1][0] for i in range(4)]


def big_itta(name: str, size: int) -> TrainedITTA:
    torch.manual_seed(0)
    weights = "imagenet" if name == "efficientnet_lite0" else "none"
    task = Task(tuple("abcdefg"), ("d",), size, lambda: make_backbone(name, weights).freeze_bn())
    return TrainedITTA(task, default(TrainedITTA.Hparams)).eval()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "resnet50", "efficientnet_lite0", "small_cnn"])
def test_a_fresh_f_theta_changes_no_bit(name: str) -> None:
    size = 16 if name == "small_cnn" else 48
    model, x = big_itta(name, size), torch.rand(2, 3, size, size)
    with torch.no_grad():
        expected = model.predict(x)
    for per in ("pixel", "channel"):
        for depth in (1, 2, 5):
            adapter = adapt(model, "itta", per=per, depth=depth)
            with torch.no_grad():
                got = adapter.model.head(adapter.model.backbone(x, adapter.adapt_block))
            assert torch.equal(got, expected), (per, depth)
            assert set(adapter.theta) == set(model.backbone.block_names)


def test_the_papers_parameter_counts() -> None:
    """ResNet-18 at 224 pixels and 7 classes (PACS) has 14.95 M parameters with f_w and Θ."""

    def count(module: torch.nn.Module) -> int:
        return sum(p.numel() for p in module.parameters())

    model = big_itta("resnet18", 224)
    theta, f_w = count(adapt(model, "itta").theta), count(model.f_w)
    plain = count(model.backbone) + count(model.head)
    assert (theta, f_w, plain) == (3_763_200, 10_240, 11_180_103)
    assert round((theta + f_w + plain) / 1e6, 2) == 14.95
    assert count(adapt(model, "itta", per="channel").theta) == 2 * 5 * (64 + 128 + 256 + 512)


def naive_stack(weight: Tensor, bias: Tensor, h: Tensor, identity: bool) -> Tensor:
    out = h
    for i in range(len(weight)):
        out = weight[i] * out + bias[i]
        if i < len(weight) - 1:
            out = F.relu(out)
    return out + h.clamp(max=0) if identity and len(weight) > 1 else out


class Naive:
    """Alg. 2 with every pass from the images and one pass per view; Adam and SGD written out."""

    def __init__(self, model: Algorithm, adapter: Adapter, optimizer: Any) -> None:
        self.model, self.hp, self.optimizer = model, adapter.hp, optimizer
        self.theta = {k: v.clone().requires_grad_() for k, v in adapter.theta.state_dict().items()}

    def features(self, x: Tensor, draw: MixDraw | None) -> Tensor:
        z = (x - 0.5) / 0.5
        for block in self.model.backbone.block_names:
            z = self.model.backbone.get_submodule(block)(z)
            if draw is not None and draw.block == block:
                z = mix_style(z, draw)
            if f"{block}.weight" in self.theta:
                z = naive_stack(self.theta[f"{block}.weight"], self.theta[f"{block}.bias"], z, identity=True)
        return z.mean((2, 3))

    def loss(self, x: Tensor, draw: MixDraw) -> Tensor:
        h = self.features(x, None) - self.features(x, draw)
        if self.hp.objective == "plain":
            return (h**2).mean()
        h = h if self.model.hp.difference == "z-z'" else -h
        return (naive_stack(self.model.f_w.weight, self.model.f_w.bias, h, identity=False) ** 2).mean()

    def __call__(self, x: Tensor, draw: MixDraw) -> Tensor:
        for _ in range(self.hp.steps):
            theta = list(self.theta.values())
            self.optimizer.step(theta, torch.autograd.grad(self.loss(x, draw), theta))
        with torch.no_grad():
            return self.model.head(self.features(x, None))


VARIANTS: dict[str, dict[str, object]] = {
    "as is": {},
    "two steps": {"steps": 2},
    "three steps": {"steps": 3},
    "last block": {"blocks": ("block4",)},
    "last block, two steps": {"blocks": ("block4",), "steps": 2},
    "second block on": {"blocks": ("block3", "block2")},
    "first and last": {"blocks": ("block1", "block4")},
    "per channel": {"per": "channel"},
    "depth 1": {"depth": 1},
    "sgd": {"optimizer": "sgd", "lr": 1.0},
    "plain": {"objective": "plain"},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("block", ["block1", "block2"])
@pytest.mark.parametrize("fresh", [True, False], ids=["first", "later"])
def test_updates_equal_the_naive_ones(
    variant: str,
    block: str,
    fresh: bool,
    trained: Trained,
    stream: list[Tensor],
    naive_optimizer: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compare the first update from a new Θ, and several updates from a changed Θ.

    At the start, entries with negative input lie exactly on the kink of their inner ReLUs. After one step, rounding
    decides on which side they are. So several updates are compared from a Θ away from the kink.
    """
    model = trained(lr=1e-2).double()
    adapter = adapt(model, "itta", **({"lr": 1e-2} | VARIANTS[variant] | ({"steps": 1} if fresh else {})))
    if not fresh:
        with torch.no_grad():
            for p in adapter.theta.parameters():
                p.add_(0.1 * torch.randn_like(p))
    optimizer = naive_optimizer(adapter.hp.lr, adapter.hp.optimizer)
    naive = Naive(model.requires_grad_(False), adapter, optimizer)
    generator = torch.Generator().manual_seed(7)
    for x in stream[: 1 if fresh else 3]:
        lam = torch.rand(len(x), dtype=torch.float64, generator=generator)
        draw = MixDraw(block, lam, torch.randperm(len(x), generator=generator))
        monkeypatch.setattr(adapter, "draw_view", lambda n, draw=draw: draw)
        before = {k: v.clone() for k, v in adapter.theta.state_dict().items()}
        got, expected = adapter(x.double()), naive(x.double(), draw)
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
        for key, value in adapter.theta.state_dict().items():
            torch.testing.assert_close(value, naive.theta[key].detach(), rtol=1e-9, atol=1e-9, msg=key)
            # (the last layer's bias of the last block cancels in z − z')
            assert key.endswith("bias") or not torch.equal(value, before[key]), key


def test_the_released_codes_difference(trained: Trained, stream: list[Tensor]) -> None:
    """f_w gets z' − z if it was trained with it. The loss differs, because its ReLUs see the other sign."""
    model = trained(difference="z'-z").double()
    adapter = adapt(model, "itta")
    z, z_aug = torch.randn(2, 5, model.backbone.dim, dtype=torch.float64)
    expected = model.f_w(z_aug - z).square().mean()
    assert adapter.loss(z, z_aug).item() == pytest.approx(expected.item(), rel=1e-14)
    assert adapter.loss(z, z_aug).item() != pytest.approx(model.f_w(z - z_aug).square().mean().item(), rel=1e-3)


def test_only_theta_moves(trained: Trained, stream: list[Tensor]) -> None:
    adapter = adapt(trained(), "itta", blocks=("block2", "block3"))
    before = {k: v.clone() for k, v in adapter.model.state_dict().items()}
    start = {k: v.clone() for k, v in adapter.theta.state_dict().items()}
    for x in stream:
        adapter(x)
    assert all(torch.equal(v, before[k]) for k, v in adapter.model.state_dict().items())
    assert all(p.grad is None and not p.requires_grad for p in adapter.model.parameters())
    assert set(adapter.theta) == {"block2", "block3"}
    assert all(not torch.equal(v, start[k]) for k, v in adapter.theta.state_dict().items())
    assert not adapter.model.training


def test_online_carries_over(trained: Trained, stream: list[Tensor]) -> None:
    model = trained()
    online, later = adapt(model, "itta", lr=1e-2), adapt(model, "itta", lr=1e-2)
    online(stream[0])
    later.generator.set_state(online.generator.get_state())
    assert not torch.equal(online(stream[1]), later(stream[1]))


def test_episodic_knows_no_history(trained: Trained, stream: list[Tensor]) -> None:
    """With the same draw, each batch is adapted as if it were the first."""
    model = trained()
    settings = {"lr": 1e-2, "steps": 2}
    episodic, fresh = adapt(model, "itta", episodic=True, **settings), adapt(model, "itta", **settings)
    for x in stream:
        draws = episodic.generator.get_state()
        got = episodic(x)
        fresh.reset()
        fresh.generator.set_state(draws)
        assert torch.equal(got, fresh(x))
        with torch.no_grad():
            assert not torch.equal(got, model.predict(x))


@contextmanager
def counting(adapter: Adapter) -> Iterator[Counter[tuple[str, int]]]:
    """Count the runs of each block of the adapter's model, by batch size."""
    runs: Counter[tuple[str, int]] = Counter()
    backbone = adapter.model.backbone

    def hook(name: str) -> Callable[..., None]:
        return lambda module, args: runs.update([(name, len(args[0]))])

    handles = [backbone.get_submodule(n).register_forward_pre_hook(hook(n)) for n in backbone.block_names]
    try:
        yield runs
    finally:
        for handle in handles:
            handle.remove()


def fixed_draw(block: str, n: int) -> MixDraw:
    return MixDraw(block, torch.full((n,), 0.3), torch.arange(n).flip(0))


@pytest.mark.parametrize(
    ("blocks", "mixed", "steps", "expected"),
    [
        # the shared part runs once, each step runs both views from the mixing point, the prediction runs one view
        ((), "block1", 1, {"block1": {4: 1}, "block2": {8: 1, 4: 1}, "block3": {8: 1, 4: 1}, "block4": {8: 1, 4: 1}}),
        ((), "block2", 1, {"block1": {4: 1}, "block2": {4: 2}, "block3": {8: 1, 4: 1}, "block4": {8: 1, 4: 1}}),
        ((), "block1", 3, {"block1": {4: 1}, "block2": {8: 3, 4: 1}, "block3": {8: 3, 4: 1}, "block4": {8: 3, 4: 1}}),
        (("block4",), "block1", 2, {"block1": {4: 1}, "block2": {8: 1}, "block3": {8: 1}, "block4": {8: 1}}),
        (("block4",), "block2", 2, {"block1": {4: 1}, "block2": {4: 1}, "block3": {8: 1}, "block4": {8: 1}}),
        (("block3",), "block1", 2, {"block1": {4: 1}, "block2": {8: 1}, "block3": {8: 1}, "block4": {8: 2, 4: 1}}),
    ],
)
def test_nothing_is_run_twice_without_need(
    blocks: tuple[str, ...],
    mixed: str,
    steps: int,
    expected: dict[str, dict[int, int]],
    trained: Trained,
    stream: list[Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    adapter = adapt(trained().double(), "itta", blocks=blocks, steps=steps)  # no fast copy in double precision
    monkeypatch.setattr(adapter, "draw_view", lambda n: fixed_draw(mixed, n))
    with counting(adapter) as runs:
        adapter(stream[0][:4].double())
    assert runs == {(block, n): count for block, sizes in expected.items() for n, count in sizes.items()}


def test_other_sizes(trained: Trained, toy_batches: Batches) -> None:
    """Θ per pixel has one image size, Θ per channel works for all."""
    x = torch.rand(8, 3, 20, 20)
    with pytest.raises(InputError, match="expected images of 16×16 pixels, got 20×20"):
        adapt(trained(), "itta")(x)
    assert adapt(trained(), "itta", per="channel")(x).shape == (8, 3)


def test_wrong_settings(trained: Trained) -> None:
    with pytest.raises(InputError, match=r"unknown block 'layer4'.*block1, block2, block3, block4"):
        adapt(trained(steps=0), "itta", blocks=("layer4",))
    with pytest.raises(InputError, match="steps must be at least 1, got 0"):
        adapt(trained(steps=0), "itta", steps=0)
    with pytest.raises(InputError, match="depth of an affine stack must be at least 1, got 0"):
        adapt(trained(steps=0), "itta", depth=0)
    with pytest.raises(InputError, match="objective: 'colour'.*learned, plain, entropy, rotation"):
        adapt(trained(steps=0), "itta", objective="colour")


def test_a_model_without_f_w(trained: Trained, stream: list[Tensor]) -> None:
    model = trained("erm")
    with pytest.raises(InputError, match=r"'erm' has no learned loss f_w.*objective=plain"):
        adapt(model, "itta")
    adapter = adapt(model, "itta", objective="plain", lr=1e-2)
    with torch.no_grad():
        assert not torch.equal(adapter(stream[0]), model.predict(stream[0]))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("episodic", [True, False])
def test_the_state_goes_on_with_every_optimizer(
    optimizer: str, episodic: bool, trained: Trained, stream: list[Tensor]
) -> None:
    model, settings = trained(), {"optimizer": optimizer, "episodic": episodic, "lr": 1e-2}
    whole, other = adapt(model, "itta", **settings), adapt(model, "itta", **settings)
    whole(stream[0])
    other.load_state_dict(whole.state_dict())
    assert torch.equal(whole(stream[1]), other(stream[1]))
    whole.reset()
    other.reset()
    assert torch.equal(whole(stream[0]), other(stream[0]))
