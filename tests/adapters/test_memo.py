"""MEMO against a direct form: a new copy of the model for every image, the mean prediction written out."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from itta.adapters import adapt
from itta.adapters.base import Adapter, frozen_copy
from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.errors import InputError
from itta.functional.augment import augment, draw_augmentation
from itta.nn.batch_norm import MixedBatchNorm

Trained = Callable[..., Algorithm]
Batches = Callable[..., list[Batch]]


@pytest.fixture
def stream(toy_batches: Batches) -> list[Tensor]:
    return [toy_batches(200 + i, n=3)[1][0].double() for i in range(3)]


class Naive:
    def __init__(self, model: Algorithm, adapter: Adapter, optimizer: Any) -> None:
        self.source, self.hp, self.optimizer = frozen_copy(model), adapter.hp, optimizer
        self.generator = torch.Generator().manual_seed(self.hp.seed)
        self.start()

    def start(self) -> None:
        self.model = copy.deepcopy(self.source)
        self.weights = {
            name: p.requires_grad_()
            for name, p in self.model.named_parameters()
            if name.startswith(("backbone.", "head."))
        }
        self.optimizer.restart()

    def __call__(self, x: Tensor) -> Tensor:
        return torch.stack([self.image(image) for image in x])

    def image(self, image: Tensor) -> Tensor:
        if self.hp.episodic:
            self.start()
        drawn = draw_augmentation(self.hp.views, self.generator)
        views = augment(torch.stack([image] * self.hp.views), drawn)
        for _ in range(self.hp.steps):
            p = sum(row.exp() / row.exp().sum() for row in self.predict(views)) / self.hp.views
            weights = list(self.weights.values())
            self.optimizer.step(weights, torch.autograd.grad(-(p * p.log()).sum(), weights))
        with torch.no_grad():
            return self.predict(image[None])[0]

    def predict(self, x: Tensor) -> Tensor:
        """Predict with batch normalisation, if there is any, written out."""
        z = (x - 0.5) / 0.5
        for block in self.model.backbone.children():
            if not isinstance(block, nn.Sequential):
                z = block(z)
                continue
            conv, norm, _ = block
            z, n = conv(z), self.hp.prior
            mean, var = z.detach().mean((0, 2, 3)), z.detach().var((0, 2, 3), unbiased=False)
            mean, var = (n * norm.running_mean + mean) / (n + 1), (n * norm.running_var + var) / (n + 1)
            mean, var, gamma, beta = (v.view(1, -1, 1, 1) for v in (mean, var, norm.weight, norm.bias))
            z = torch.relu((z - mean) / (var + 1e-5).sqrt() * gamma + beta)
        return self.model.head(z.mean((2, 3)))


VARIANTS: dict[str, dict[str, object]] = {
    "as is": {},
    "one view": {"views": 1},
    "two steps": {"steps": 2},
    "momentum": {"steps": 2, "momentum": 0.9},
    "adam": {"optimizer": "adam", "lr": 1e-3},  # whose moments must not reach the next image
    "weak prior": {"prior": 1.0},
    "online": {"episodic": False, "momentum": 0.9},
}


@pytest.mark.parametrize("batch_norm", [True, False], ids=["batch norm", "group norm"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_updates_equal_the_naive_ones(
    variant: str, batch_norm: bool, trained: Trained, stream: list[Tensor], naive_optimizer: Any
) -> None:
    model = trained("erm", lr=1e-2, batch_norm=batch_norm).double()
    adapter = adapt(model, "memo", **({"lr": 1e-1, "views": 4, "seed": 3} | VARIANTS[variant]))
    naive = Naive(model, adapter, naive_optimizer(adapter.hp.lr, adapter.hp.optimizer, adapter.hp.momentum))
    for x in stream:
        torch.testing.assert_close(adapter(x), naive(x), rtol=1e-9, atol=1e-9)
        assert len(adapter.moving) == len(naive.weights)
        for moving, (name, w) in zip(adapter.moving.values(), naive.weights.items()):
            torch.testing.assert_close(moving.detach(), w.detach(), rtol=1e-9, atol=1e-9, msg=name)
    moved = {name for name, p in adapter.moving.items() if not torch.equal(p, adapter.start[name])}
    assert moved == adapter.moving.keys()


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_an_image_is_adapted_as_if_it_were_alone(optimizer: str, trained: Trained, stream: list[Tensor]) -> None:
    """Other images, their order, and their moments in the optimiser do not change its prediction."""
    model = trained("erm", batch_norm=True).double()
    together, alone = (adapt(model, "memo", lr=1e-2, views=4, optimizer=optimizer) for _ in range(2))
    for x in stream:
        expected = []
        alone.generator.set_state(together.generator.get_state())
        for image in x.split(1):
            draws = alone.generator.get_state()
            alone.reset()
            alone.generator.set_state(draws)
            expected.append(alone(image))
        assert torch.equal(together(x), torch.cat(expected))


@pytest.mark.parametrize("steps", [1, 2])
def test_each_image_takes_its_views_and_one_pass_more(steps: int, trained: Trained, stream: list[Tensor]) -> None:
    adapter = adapt(trained("erm").double(), "memo", views=4, steps=steps)
    passes: list[tuple[int, bool]] = []
    head = adapter.model.head
    handle = head.register_forward_hook(lambda module, args, out: passes.append((len(out), out.requires_grad)))
    adapter(stream[0])
    handle.remove()
    assert passes == [*[(4, True)] * steps, (1, False)] * 3


def test_every_image_gets_views_of_its_own(trained: Trained, stream: list[Tensor]) -> None:
    """The same image twice in a batch gets different views."""
    adapter = adapt(trained("erm").double(), "memo", views=2, lr=1e-1)
    first, second = adapter(stream[0][[0, 0]])
    assert not torch.equal(first, second)


@pytest.mark.parametrize("batch_norm", [True, False])
@pytest.mark.parametrize("pixel", [0.0, 1.0])
def test_constant_images(pixel: float, batch_norm: bool, trained: Trained, stream: list[Tensor]) -> None:
    adapter = adapt(trained("erm", batch_norm=batch_norm).double(), "memo", views=4, lr=1e-1)
    for x in (torch.full_like(stream[0], pixel), stream[0]):
        assert torch.isfinite(adapter(x)).all()
    assert all(torch.isfinite(v).all() for v in adapter.state_dict().values())


def test_without_the_image_the_stored_statistics_remain(trained: Trained, stream: list[Tensor]) -> None:
    model = trained("erm", batch_norm=True).double()
    x = stream[0]
    with torch.no_grad():
        expected = model.predict(x)
    got = [adapt(model, "memo", views=2, lr=0.0, prior=prior)(x) for prior in (1e30, 16.0)]
    torch.testing.assert_close(got[0], expected, rtol=1e-9, atol=1e-9)
    assert (got[1] - expected).abs().max() > 1e-4


def test_wrong_settings(trained: Trained) -> None:
    with pytest.raises(InputError, match=r"prior must be at least 0, got -1\.0"):
        adapt(trained("erm", steps=0), "memo", prior=-1)
    with pytest.raises(InputError, match="views must be at least 1, got 0"):
        adapt(trained("erm", steps=0), "memo", views=0)


def test_the_variance_has_divisor_n_where_the_release_has_n_minus_1(trained: Trained, stream: list[Tensor]) -> None:
    """The release reads the present statistics off torch's running ones, updated with momentum 1."""
    adapter = adapt(trained("erm", batch_norm=True).double(), "memo", prior=3.0)
    layer = next(m for m in adapter.model.modules() if isinstance(m, MixedBatchNorm))
    z = torch.randn(1, layer.norm.num_features, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean, variance = torch.zeros(len(z[0]), dtype=torch.float64), torch.ones(len(z[0]), dtype=torch.float64)
    nn.functional.batch_norm(z, mean, variance, training=True, momentum=1.0)
    mean = 0.75 * layer.norm.running_mean + 0.25 * mean

    def normalised(present: Tensor) -> Tensor:
        mixed = 0.75 * layer.norm.running_var + 0.25 * present
        return nn.functional.batch_norm(z, mean, mixed, layer.norm.weight, layer.norm.bias, eps=layer.norm.eps)

    torch.testing.assert_close(layer(z), normalised(variance * 5 / 6), rtol=1e-9, atol=1e-9)  # n = 6 positions
    assert (layer(z) - normalised(variance)).abs().max() > 1e-3
