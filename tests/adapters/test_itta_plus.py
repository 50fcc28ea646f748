"""itta+ against a version that keeps every style and every answer, and runs each view on its own."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from itta.adapters import Guard, adapt
from itta.adapters.itta_plus import ITTAPlus
from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.errors import InputError

Trained = Callable[..., Algorithm]
Batches = Callable[..., list[Batch]]
SIZES = (12, 5, 1, 9, 12, 3)


@pytest.fixture
def model(trained: Trained) -> Algorithm:
    return trained("erm", batch_norm=True, steps=20, lr=1e-2).double()


@pytest.fixture
def stream(toy_batches: Batches) -> list[Tensor]:
    return [toy_batches(400 + i, n=n)[i % 2][0].double() ** 2 for i, n in enumerate(SIZES)]


class Naive:
    def __init__(self, model: Algorithm, blocks: tuple[str, ...], memory: int, prior: float, strength: float) -> None:
        self.model, self.blocks, self.memory, self.prior, self.rho = model, blocks, memory, prior, strength
        self.styles: dict[str, list[list[Tensor]]] = {b: [] for b in blocks}  # block -> batch -> image -> [2, C]
        self.answers: dict[str, list[list[Tensor]]] = {"plain": [], "restyled": []}

    def weigh(self, batches: list[list[Tensor]]) -> tuple[Tensor, float]:
        """Sum of all entries and of their weights; an entry fades with every image of the batches after its own."""
        total, weight = torch.zeros_like(batches[0][0]), 0.0
        for i, batch in enumerate(batches):
            fading = (1 - 1 / self.memory) ** sum(map(len, batches[i + 1 :]))
            for entry in batch:
                total, weight = total + fading * entry, weight + fading
        return total, weight

    def move(self, block: str, z: Tensor) -> Tensor:
        if block not in self.blocks:
            return z
        bank = self.model.style_bank
        source = torch.stack([bank.mean[block].double().mean(0), bank.std[block].double().mean(0)])
        own = []
        for image in z:
            flat = image.flatten(1)
            mean = flat.mean(1)
            own.append(torch.stack([mean, (((flat - mean[:, None]) ** 2).sum(1) / (flat.shape[1] - 1) + 1e-6).sqrt()]))
        self.styles[block].append(own)
        total, weight = self.weigh(self.styles[block])
        target = (total + self.prior * source) / (weight + self.prior)
        scale = (source[1] / target[1]) ** self.rho
        centre = (1 - self.rho) * target[0] + self.rho * source[0]
        return (z - target[0][:, None, None]) * scale[:, None, None] + centre[:, None, None]

    @torch.no_grad()
    def __call__(self, x: Tensor) -> dict[str, Tensor]:
        views = {
            "plain": self.model.head(self.model.backbone(x)).softmax(1),
            "restyled": self.model.head(self.model.backbone(x, self.move)).softmax(1),
        }
        for name, p in views.items():
            self.answers[name].append(list(p))
        return views

    def spread(self, name: str) -> float:
        total, weight = self.weigh(self.answers[name])
        p = total / weight
        return float(-(p * p.log()).sum())


@pytest.mark.parametrize("blocks", [(), ("block2",), ("block1", "block2")])
@pytest.mark.parametrize("strength", [1.0, 0.4])
@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize("average", [True, False])
def test_predictions_equal_the_naive_ones(
    blocks: tuple[str, ...], strength: float, gate: bool, average: bool, model: Algorithm, stream: list[Tensor]
) -> None:
    settings: dict[str, Any] = {"memory": 20, "prior": 3.0, "strength": strength}
    adapter = adapt(model, "itta+", guard=False, patience=14, blocks=blocks, gate=gate, average=average, **settings)
    naive, seen, counted = Naive(model, blocks or ("block1",), **settings), 0, []
    for x in stream:
        p, seen = naive(x), seen + len(x)
        counted.append(seen >= 14 and (not gate or naive.spread("restyled") >= naive.spread("plain")))
        expected = (p["plain"] + p["restyled"]) / 2 if average else p["restyled"]
        got = adapter(x).softmax(1)
        torch.testing.assert_close(got, expected if counted[-1] else p["plain"], rtol=0, atol=1e-9)
    assert counted[0] is False
    assert any(counted) or gate


def test_the_gate_is_seen_open_and_shut(model: Algorithm, stream: list[Tensor]) -> None:
    """Towards the sources' own style nothing is lost; towards one flat grey all answers become the same."""
    bank = model.style_bank
    assert bank is not None
    opened = adapt(model, "itta+", guard=False, patience=0, strength=0.0)
    plain = adapt(model, "source")
    assert isinstance(opened, ITTAPlus)
    for x in stream:
        torch.testing.assert_close(opened(x).softmax(1), plain(x).softmax(1))
    flat = {block: torch.full_like(s, 1e-6) for block, s in bank.std.items()}
    model.style_bank = replace(bank, std=flat)
    shut, forced = (adapt(model, "itta+", guard=False, patience=0, gate=gate, average=False) for gate in (True, False))
    for x in stream:
        assert torch.equal(shut(x), plain(x))
        assert forced(x).argmax(1).unique().numel() == 1


def test_one_at_a_time_learns_what_all_at_once_does(model: Algorithm, stream: list[Tensor]) -> None:
    images = torch.cat(stream)
    thetas = []
    for size in (1, 4, len(images)):
        adapter = adapt(model, "itta+", guard=False, memory=10**12)
        assert isinstance(adapter, ITTAPlus)
        for x in images.split(size):
            adapter(x)
        thetas.append(torch.stack(adapter.theta("block1")))
    torch.testing.assert_close(thetas[0], thetas[2], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(thetas[1], thetas[2], rtol=1e-9, atol=1e-9)
    assert (thetas[2][0] - 1).abs().max() > 0.05


def test_the_trained_model_is_asked_once(model: Algorithm, stream: list[Tensor]) -> None:
    """The guard takes the trained model's answer from the adapter, and it is the right one."""
    adapter = adapt(model, "itta+")
    assert isinstance(adapter, Guard)
    passes: list[int] = []
    for m in (adapter.model, adapter.inner.model):
        m.backbone.last_block.register_forward_hook(lambda module, args, out: passes.append(len(out)))
    for x in stream:
        adapter(x)
        assert adapter.inner.reference is not None
        torch.testing.assert_close(adapter.inner.reference, model.predict(x).detach(), rtol=0, atol=1e-12)
        assert passes[-1] == 2 * len(x)
    assert len(passes) == len(stream)


def test_before_the_first_image_it_is_the_trained_model(model: Algorithm, stream: list[Tensor]) -> None:
    adapter = adapt(model, "itta+", guard=False, patience=0, prior=0.0, gate=False)
    assert torch.equal(adapter.frozen()(stream[0]), model.predict(stream[0]))


def test_what_cannot_work_is_refused(model: Algorithm) -> None:
    with pytest.raises(InputError, match=r"can restyle after block1 and block2, not after block4"):
        adapt(model, "itta+", blocks=("block4",))
    with pytest.raises(InputError, match="memory must be at least 1, got 0"):
        adapt(model, "itta+", memory=0)
    model.style_bank = None
    with pytest.raises(InputError, match="carries no style bank: train it again"):
        adapt(model, "itta+")
