"""T3A against lists of supports that are sorted and cut for every batch."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from itta.adapters import adapt
from itta.algorithms import Algorithm, Task
from itta.algorithms.base import Batch
from itta.errors import InputError

Trained = Callable[..., Algorithm]
Batches = Callable[..., list[Batch]]


@pytest.fixture
def stream(toy_batches: Batches) -> list[Tensor]:
    """Batches of both domains; the last ones are smaller."""
    sizes = (12, 12, 9, 5, 1)
    return [toy_batches(200 + i, n=n)[i % 2][0].double() for i, n in enumerate(sizes)]


class Naive:
    """Keep every support, starting with the head's rows."""

    def __init__(self, model: Algorithm, m: int) -> None:
        self.model, self.m = model, m
        self.supports: list[tuple[int, float, Tensor]] = []  # label, entropy, vector
        self.add(model.head.weight.detach())

    def add(self, z: Tensor) -> None:
        weight, bias = self.model.head.weight.detach(), self.model.head.bias.detach()
        for row in z:
            p = torch.stack([w @ row for w in weight]).add(bias).softmax(0).tolist()
            self.supports.append((p.index(max(p)), -sum(v * math.log(v) for v in p), row))

    def of(self, label: int) -> list[Tensor]:
        own = sorted((s for s in self.supports if s[0] == label), key=lambda s: s[1])
        return [row for _, _, row in (own if self.m == -1 else own[: self.m])]

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        z = self.model.backbone(x)
        self.add(z)
        scores = []
        for label in range(len(self.model.head.weight)):
            total = sum((row / row.norm() for row in self.of(label)), torch.zeros_like(z[0]))
            scores.append(z @ (total / total.norm() if total.any() else total))
        return torch.stack(scores, 1)


@pytest.mark.parametrize("m", [1, 2, 5, 20, 100, -1])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_scores_equal_the_naive_ones(m: int, batch_norm: bool, trained: Trained, stream: list[Tensor]) -> None:
    model = trained("erm", batch_norm=batch_norm).double()
    adapter, naive = adapt(model, "t3a", supports=m), Naive(model, m)
    for x in stream:
        torch.testing.assert_close(adapter(x), naive(x), rtol=0, atol=1e-9)
    assert len(naive.supports) == 3 + sum(map(len, stream))


def test_the_surest_push_the_others_out(trained: Trained, stream: list[Tensor]) -> None:
    """In the stream both old and new supports are dropped."""
    model = trained("erm").double()
    adapter, naive = adapt(model, "t3a", supports=2), Naive(model, 2)
    gone = 0
    for x in stream:
        before = adapter.supports.entropy.clone()
        adapter(x)
        naive(x)
        assert (adapter.supports.entropy.sort().values <= before.sort().values).all()
        gone += int(((adapter.supports.entropy != before) & before.isfinite()).sum())
        for label in range(3):
            own = sorted(h for y, h, _ in naive.supports if y == label)[:2]
            kept = [h for h in adapter.supports.entropy[label].sort().values.tolist() if math.isfinite(h)]
            assert kept == pytest.approx(own, abs=1e-12)
    assert gone > 0


def test_all_are_kept_down_to_the_last(trained: Trained, stream: list[Tensor]) -> None:
    """The release's slice [: -1] drops one support of each class."""
    model = trained("erm").double()
    adapter = adapt(model, "t3a", supports=-1)
    for x in stream:
        adapter(x)
    naive = Naive(model, -1)
    for x in stream:
        naive(x)
    for label in range(3):
        rows = naive.of(label)
        total = sum((row / row.norm() for row in rows), torch.zeros_like(adapter.supports.head.weight[0]))
        torch.testing.assert_close(adapter.supports.kept[label].sum(0), total, rtol=0, atol=1e-12)


def test_rows_of_the_head_get_the_label_that_the_head_gives_them(trained: Trained, stream: list[Tensor]) -> None:
    """If a class's own row is predicted as another class, it has no prototype and scores 0 until it is predicted."""
    model = trained("erm").double()
    model.head.bias.data = torch.tensor([100.0, 0.0, 0.0], dtype=torch.float64)
    adapter = adapt(model, "t3a", supports=5)
    assert adapter.supports.entropy.isfinite().sum(1).tolist() == [3, 0, 0]
    scores = adapter(stream[0])
    torch.testing.assert_close(scores, Naive(model, 5)(stream[0]), rtol=0, atol=1e-9)
    assert not scores[:, 1:].any()


@pytest.mark.parametrize("m", [3, -1])
def test_memory_is_flat_along_a_stream(m: int, trained: Trained, stream: list[Tensor]) -> None:
    adapter = adapt(trained("erm").double(), "t3a", supports=m)
    shapes = {k: v.shape for k, v in adapter.state_dict().items()}
    places = adapter.supports.kept.data_ptr(), adapter.supports.entropy.data_ptr()
    for x in stream * 3:
        adapter(x)
    assert {k: v.shape for k, v in adapter.state_dict().items()} == shapes
    assert (adapter.supports.kept.data_ptr(), adapter.supports.entropy.data_ptr()) == places
    assert shapes["kept"].numel() == 3 * max(m, 1) * 16


@pytest.mark.parametrize("m", [2, -1])
def test_reset_and_going_on_elsewhere(m: int, trained: Trained, stream: list[Tensor]) -> None:
    model = trained("erm").double()
    adapter, other = (adapt(model, "t3a", supports=m) for _ in range(2))
    first = [adapter(x) for x in stream[:3]]
    other.load_state_dict(adapter.state_dict())
    assert torch.equal(adapter(stream[3]), other(stream[3]))
    for either in (adapter, other):
        either.reset()
        assert all(torch.equal(either(x), y) for x, y in zip(stream, first))


def test_a_stream_begun_without_gradients_goes_on_with_them(trained: Trained, stream: list[Tensor]) -> None:
    model = trained("erm").double()
    adapter, plain = adapt(model, "t3a"), adapt(model, "t3a")
    with torch.inference_mode():
        first = adapter(stream[0].clone())
    assert torch.equal(first, plain(stream[0]))
    assert torch.equal(adapter(stream[1]), plain(stream[1]))


def test_the_backbone_runs_once(trained: Trained, stream: list[Tensor], counting_passes: Any) -> None:
    adapter = adapt(trained("erm").double(), "t3a")
    with counting_passes(adapter, "backbone") as passes:
        adapter(stream[0])
    assert passes == [12]


@pytest.mark.parametrize("m", [2, -1])
def test_degenerate_images(m: int, trained: Trained) -> None:
    """Equal images, and images with features of zero."""
    model = trained("erm", batch_norm=True)
    adapter = adapt(model, "t3a", supports=m)
    for value in (0.0, 1.0):
        assert torch.isfinite(adapter(torch.full((6, 3, 16, 16), value))).all()
    model.backbone.block4[1].bias.data.fill_(-1e3)  # its ReLU gives zeros
    adapter = adapt(model, "t3a", supports=m)
    scores = adapter(torch.rand(6, 3, 16, 16))
    assert not scores.any()
    assert torch.isfinite(adapter.supports.kept).all()


@pytest.mark.parametrize("m", [0, -2])
def test_settings_that_make_no_sense(m: int, trained: Trained) -> None:
    with pytest.raises(InputError, match=f"supports must be at least 1, or -1 for all, got {m}"):
        adapt(trained("erm", steps=0), "t3a", supports=m)


def test_heads_without_a_row_for_each_class(toy: Task, build: Trained, trained: Trained) -> None:
    def deep(n_in: int, n_out: int) -> nn.Module:
        return nn.Sequential(nn.Linear(n_in, 8), nn.ReLU(), nn.Linear(8, n_out))

    with pytest.raises(InputError, match="rows of a linear head.*'erm'"):
        adapt(build("erm", replace(toy, make_head=deep)), "t3a")
    with pytest.raises(InputError, match="rows of a linear head.*'mtl'"):
        adapt(trained("mtl", steps=0), "t3a")
