"""Fishr against its formula: one differentiable autograd pass for the gradient of each image."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from itta.algorithms import Algorithm, Task
from itta.algorithms.base import Batch
from itta.algorithms.fishr import head_gradients
from itta.nn.small_cnn import SmallCNN

EMA = 0.9


def three_layers(n_in: int, n_out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(n_in, 4), nn.Tanh(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, n_out))


def two_layers(n_in: int, n_out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(n_in, 3), nn.Tanh(), nn.Linear(3, n_out))


def image_gradient(head: nn.Module, z: Tensor, label: Tensor) -> Tensor:
    """Return ∇_φ of one image's cross-entropy, as one vector."""
    logits = head(z[None])[0]
    loss = logits.exp().sum().log() - logits[label]
    gradients = torch.autograd.grad(loss, list(head.parameters()), create_graph=True)
    return torch.cat([g.flatten() for g in gradients])


def variance(gradients: Sequence[Tensor]) -> Tensor:
    mean = sum(gradients) / len(gradients)
    return sum((g - mean) ** 2 for g in gradients) / len(gradients)


def spread(m: Sequence[Tensor]) -> Tensor:
    """Return the penalty, from running means without bias correction."""
    used = [each / (1 - EMA) for each in m]
    mean = sum(used) / len(used)
    return sum(((u - mean) ** 2).sum() / u.numel() for u in used) / len(used)


def naive_losses(model: Algorithm, batches: list[Batch], state: SimpleNamespace, ce: Any) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy over all images and the penalty, and update the running means."""
    z = [torch.cat([model.backbone(image[None]) for image in x]) for x, _ in batches]
    v = [variance([image_gradient(model.head, *pair) for pair in zip(z_e, y)]) for z_e, (_, y) in zip(z, batches)]
    old = getattr(state, "m", [torch.zeros_like(each) for each in v])
    m = [EMA * before + (1 - EMA) * now for before, now in zip(old, v)]
    state.m = [each.detach() for each in m]
    return ce(model.head(torch.cat(z)), torch.cat([y for _, y in batches])), spread(m)


@pytest.mark.parametrize(
    ("anneal", "sizes", "single_source"),
    [
        (0, (6, 6, 6), "split"),
        (1, (6, 6, 6), "split"),
        (10, (6, 6, 6), "split"),
        (1, (6, 5, 4), "split"),
        (0, (3, 1, 2), "split"),
        (0, (8,), "split"),
        (1, (6,), "native"),
    ],
)
def test_three_updates(
    anneal: int,
    sizes: tuple[int, ...],
    single_source: str,
    assert_matches_naive: Callable[..., Any],
    naive_adam: Any,
    cross_entropy: Any,
) -> None:
    """Adam restarts at the threshold, except at threshold 0, where it is new anyway."""

    def naive(model: Algorithm, batches: list[Batch], state: SimpleNamespace) -> dict[str, float]:
        if not hasattr(state, "adam"):
            state.adam, state.step = naive_adam(1e-2, 1e-2), 0
        nll, penalty = naive_losses(model, batches, state, cross_entropy)
        loss = nll + (50.0 if state.step >= anneal else 0.0) * penalty
        if state.step == anneal:
            state.adam.restart()
        state.step += 1
        parameters = [*model.backbone.parameters(), *model.head.parameters()]
        state.adam.step(parameters, torch.autograd.grad(loss, parameters))
        return {"loss": loss.item(), "nll": nll.item(), "penalty": penalty.item()}

    settings = {"lambda_": 50.0, "penalty_anneal_iters": anneal, "ema": EMA, "single_source": single_source}
    done = assert_matches_naive("fishr", naive, sizes=sizes, **settings)
    torch.testing.assert_close(done.algorithm.variances, torch.stack(done.state.m), rtol=1e-9, atol=1e-9)


def test_closed_form_of_a_linear_head() -> None:
    """It is (p − onehot) ⊗ z for the weight and p − onehot for the bias. Compare value and derivative."""
    torch.manual_seed(0)
    head, y = nn.Linear(4, 3).double(), torch.tensor([0, 2, 1, 1, 0])
    z = torch.randn(5, 4, dtype=torch.double, requires_grad=True)
    error = head(z).softmax(1) - torch.eye(3, dtype=torch.double)[y]
    expected = torch.cat([torch.einsum("nc,nd->ncd", error, z).flatten(1), error], 1)
    got = head_gradients(head, z, y)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    mask = torch.randn(got.shape, dtype=torch.double)
    inputs = [z, *head.parameters()]
    for a, b in zip(*(torch.autograd.grad((mask * g**2).sum(), inputs) for g in (got, expected)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("make_head", [nn.Linear, three_layers])
def test_heads(make_head: Callable[[int, int], nn.Module], build: Any, toy_batches: Any, cross_entropy: Any) -> None:
    """Compare losses and gradients over two steps, so that the running means matter."""
    task = Task(("across", "down", "chequer"), ("warm", "cold"), 16, lambda: SmallCNN(width=8), make_head)
    algorithm = build("fishr", task, lambda_=50.0, penalty_anneal_iters=0, ema=EMA).double()
    state = SimpleNamespace()
    parameters = [*algorithm.backbone.parameters(), *algorithm.head.parameters()]
    for step in range(2):
        batches = [(x.double(), y) for x, y in toy_batches(step, n=4)]
        loss, _ = algorithm.objective(batches)
        nll, penalty = naive_losses(algorithm, batches, state, cross_entropy)
        expected = nll + 50.0 * penalty
        assert penalty > 0
        assert loss.item() == pytest.approx(expected.item(), rel=1e-11)
        pairs = zip(*(torch.autograd.grad(each, parameters) for each in (loss, expected)), strict=True)
        for got, wanted in pairs:
            torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("make_head", [nn.Linear, two_layers])
def test_second_derivative(make_head: Callable[[int, int], nn.Module]) -> None:
    """Compare the penalty's gradient for features and head with finite differences."""
    torch.manual_seed(0)
    head, y = make_head(4, 3).double(), torch.tensor([0, 2, 1, 1, 0, 2])
    z = torch.randn(6, 4, dtype=torch.double, requires_grad=True)

    def penalty(z: Tensor, *_: Tensor) -> Tensor:
        v = torch.stack([g.var(0, correction=0) for g in head_gradients(head, z, y).split([4, 2])])
        return (v - v.mean(0)).square().sum()

    assert torch.autograd.gradcheck(penalty, (z, *head.parameters()))


def test_equal_images(build: Callable[..., Algorithm], toy_batches: Callable[..., list[Batch]]) -> None:
    """Without variance within the domains there is nothing to match, and the weights stay finite."""
    algorithm = build("fishr", penalty_anneal_iters=0)
    batches = [(x[:1].expand(3, -1, -1, -1), y[:1].expand(3)) for x, y in toy_batches(0)]
    for _ in range(3):
        assert algorithm.update(batches)["penalty"] == pytest.approx(0, abs=1e-12)
    assert all(p.isfinite().all() for p in algorithm.parameters())
