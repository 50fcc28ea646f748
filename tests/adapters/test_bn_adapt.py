"""BN adaptation against the network written out, with its statistics."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from itta.adapters import adapt
from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.errors import InputError

Trained = Callable[..., Algorithm]
Batches = Callable[..., list[Batch]]


@pytest.fixture
def stream(toy_batches: Batches) -> list[Tensor]:
    return [toy_batches(200 + i, n=n)[1][0].double() for i, n in enumerate((12, 12, 5))]


@pytest.fixture
def model(trained: Trained) -> Algorithm:
    return trained("erm", batch_norm=True).double()


class Naive:
    """The tiny network with mixed statistics in its four layers. It keeps the statistics that mode=ema keeps."""

    def __init__(self, model: Algorithm, share: Callable[[int], float], carry: bool = False) -> None:
        self.model, self.share, self.carry = model, share, carry
        norms = [block[1] for block in self.blocks()]
        self.stored = [(n.running_mean.clone(), n.running_var.clone()) for n in norms]

    def blocks(self) -> list[torch.nn.Module]:
        return [self.model.backbone.get_submodule(name) for name in self.model.backbone.block_names]

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        a, z = self.share(len(x)), (x - 0.5) / 0.5
        for i, (conv, norm, _) in enumerate(self.blocks()):
            z = conv(z)
            mean = z.sum((0, 2, 3)) / (z.numel() / z.shape[1])
            centred = z - mean.view(-1, 1, 1)
            var = (centred**2).sum((0, 2, 3)) / (z.numel() / z.shape[1])
            mean, var = (1 - a) * self.stored[i][0] + a * mean, (1 - a) * self.stored[i][1] + a * var
            if self.carry:
                self.stored[i] = mean, var
            z = (z - mean.view(-1, 1, 1)) / (var + 1e-5).sqrt().view(-1, 1, 1)
            z = (z * norm.weight.view(-1, 1, 1) + norm.bias.view(-1, 1, 1)).clamp(min=0)
        return z.mean((2, 3)) @ self.model.head.weight.T + self.model.head.bias


MODES: dict[str, tuple[dict[str, object], Callable[[int], float]]] = {
    "batch": ({"mode": "batch"}, lambda n: 1.0),
    "as is": ({}, lambda n: n / (16 + n)),
    "prior": ({"mode": "prior", "prior": 3}, lambda n: n / (3 + n)),
    "alpha": ({"mode": "alpha"}, lambda n: 0.1),
    "larger alpha": ({"mode": "alpha", "alpha": 0.7}, lambda n: 0.7),
    "ema": ({"mode": "ema"}, lambda n: 0.1),
    "faster ema": ({"mode": "ema", "momentum": 0.5}, lambda n: 0.5),
}


@pytest.mark.parametrize("mode", MODES)
def test_predictions_equal_the_naive_ones(mode: str, model: Algorithm, stream: list[Tensor]) -> None:
    settings, share = MODES[mode]
    adapter, naive = adapt(model, "bn_adapt", **settings), Naive(model, share, carry="ema" in mode)
    source = adapt(model, "source")
    for x in stream:
        got = adapter(x)
        torch.testing.assert_close(got, naive(x), rtol=0, atol=1e-9)
        assert (got - source(x)).abs().max() > 1e-4
    for norm, (mean, var) in zip(adapter.norms.values(), naive.stored):
        torch.testing.assert_close(norm.norm.running_mean, mean, rtol=0, atol=1e-9)
        torch.testing.assert_close(norm.norm.running_var, var, rtol=0, atol=1e-9)


@pytest.mark.parametrize("mode", ["batch", "alpha", "prior"])
def test_only_the_running_form_remembers(mode: str, model: Algorithm, stream: list[Tensor]) -> None:
    adapter = adapt(model, "bn_adapt", mode=mode)
    first = adapter(stream[0])
    adapter(stream[1])
    assert torch.equal(adapter(stream[0]), first)
    running = adapt(model, "bn_adapt", mode="ema")
    first = running(stream[0])
    assert not torch.equal(running(stream[0]), first)


def test_the_running_form_resets_and_goes_on_elsewhere(model: Algorithm, stream: list[Tensor]) -> None:
    adapter, other = (adapt(model, "bn_adapt", mode="ema", momentum=0.5) for _ in range(2))
    first = [adapter(x) for x in stream[:2]]
    other.load_state_dict(adapter.state_dict())
    assert torch.equal(adapter(stream[2]), other(stream[2]))
    for either in (adapter, other):
        either.reset()
        assert all(torch.equal(either(x), y) for x, y in zip(stream, first))


def test_the_ends_of_the_scale(model: Algorithm, stream: list[Tensor]) -> None:
    """Share 0 gives the trained model. Share 1 gives the batch's statistics, as torch in training mode."""
    none, whole = (adapt(model, "bn_adapt", mode="alpha", alpha=a)(stream[0]) for a in (0.0, 1.0))
    with torch.no_grad():
        torch.testing.assert_close(none, model.predict(stream[0]), rtol=0, atol=1e-12)
        model.train()
        torch.testing.assert_close(whole, model.predict(stream[0]), rtol=0, atol=1e-9)


def test_one_image(model: Algorithm, stream: list[Tensor]) -> None:
    """The statistics of one image alone are refused, but they may be mixed with those of training."""
    with pytest.raises(InputError, match="mode=batch needs at least 2 images at a time, got 1.*mode=prior"):
        adapt(model, "bn_adapt", mode="batch")(stream[0][:1])
    expected = Naive(model, lambda n: 1 / 17)(stream[0][:1])
    torch.testing.assert_close(adapt(model, "bn_adapt")(stream[0][:1]), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("mode", ["batch", "alpha", "prior", "ema"])
def test_images_that_are_all_the_same(mode: str, model: Algorithm) -> None:
    adapter = adapt(model.float(), "bn_adapt", mode=mode, momentum=1.0)
    for value in (0.0, 1.0, 0.0):
        assert torch.isfinite(adapter(torch.full((4, 3, 16, 16), value))).all()
    assert all(torch.isfinite(v).all() for v in adapter.state_dict().values())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 1.5}, "alpha must be between 0 and 1, got 1.5"),
        ({"momentum": -0.1}, "momentum must be between 0 and 1, got -0.1"),
        ({"alpha": float("nan")}, "alpha must be between 0 and 1, got nan"),
        ({"prior": 0}, "prior must be above 0, got 0.*mode=batch"),
        ({"mode": "mean"}, "mode: 'mean'.*batch, alpha, prior, ema"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, object], message: str, model: Algorithm) -> None:
    with pytest.raises(InputError, match=message):
        adapt(model, "bn_adapt", **settings)
