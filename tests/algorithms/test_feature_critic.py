"""Feature-Critic against its formula: autograd computes the critic's gradient through the virtual step of θ."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from itta.algorithms import Algorithm, Task
from itta.algorithms.base import Batch
from itta.errors import InputError
from itta.nn.small_cnn import SmallCNN

LR = 1e-2


def critic(z: Tensor, omega: Sequence[Tensor]) -> Tensor:
    """Return A_ω: linear, ReLU, linear, softplus, mean over images."""
    w1, b1, w2, b2 = omega
    values = [(1 + (w2 @ (w1 @ row + b1).clamp(min=0) + b2).exp()).log() for row in z]
    return torch.cat(values).mean()


def step_losses(model: Algorithm, train: list[Batch], beta: float, p: float, ce: Any) -> tuple[Tensor, Tensor]:
    """Return L_m and L_d, computed domain by domain."""
    main, extra = [], []
    for x, y in train:
        z = dropped(model.backbone(x), p)
        main.append(ce(model.head(z), y))
        extra.append(beta * critic(z, list(model.critic.parameters())))
    return sum(main), sum(extra)


def meta_loss(
    model: Algorithm, test: Batch, g_main: Sequence[Tensor], g_extra: Sequence[Tensor], h: float, p: float, ce: Any
) -> Tensor:
    """Return J, with the graph of ∇_θ L_d."""
    x, y = test
    risks = []
    for gradients in (g_main, [a + b for a, b in zip(g_main, g_extra)]):
        theta = {k: q - LR * g for (k, q), g in zip(model.backbone.named_parameters(), gradients)}
        risks.append(ce(model.head(dropped(functional_call(model.backbone, theta, (x,)), p)), y))
    return -h * torch.tanh(risks[0].detach() - risks[1])


def dropped(z: Tensor, p: float) -> Tensor:
    return z * (torch.rand(z.shape, dtype=torch.double) >= p) / (1 - p) if p > 0 else z


@pytest.mark.parametrize(
    ("sizes", "beta", "h", "p"),
    [
        ((6, 6, 6), 1.0, 1.0, 0.0),
        ((6, 5, 4), 0.01, 3.0, 0.0),
        ((6, 5, 4), 1.0, 1.0, 0.4),
        ((4, 3), 10.0, 1.0, 0.0),
        ((1, 1, 1), 1.0, 1.0, 0.0),
        ((8,), 1.0, 1.0, 0.0),
    ],
)
def test_three_updates(
    sizes: tuple[int, ...],
    beta: float,
    h: float,
    p: float,
    assert_matches_naive: Callable[..., Any],
    naive_adam: Any,
    cross_entropy: Any,
) -> None:
    def naive(model: Algorithm, batches: list[Batch], state: SimpleNamespace) -> dict[str, float]:
        if not hasattr(state, "adam"):
            state.adam, state.critic_adam, state.held_out = naive_adam(LR, 1e-2), naive_adam(3e-3), set()
        batches, held_out = list(batches), int(torch.randint(len(batches), ()))
        state.held_out.add(held_out)
        test = batches.pop(held_out)
        theta, phi = list(model.backbone.parameters()), list(model.head.parameters())
        main, extra = step_losses(model, batches, beta, p, cross_entropy)
        g_main = torch.autograd.grad(main, theta + phi, retain_graph=True)
        g_extra = torch.autograd.grad(extra, theta, create_graph=True)
        meta = meta_loss(model, test, g_main[: len(theta)], g_extra, h, p, cross_entropy)
        omega = list(model.critic.parameters())
        g_omega = torch.autograd.grad(meta, omega)
        state.critic_adam.step(omega, g_omega)
        moves = [a + b.detach() for a, b in zip(g_main, g_extra)]
        state.adam.step(theta + phi, [*moves, *g_main[len(theta) :]])
        return {"loss": main.item(), "critic": extra.item(), "meta": meta.item()}

    settings = {"critic_beta": beta, "critic_scale": h, "critic_lr": 3e-3, "critic_width": 10, "resnet_dropout": p}
    done = assert_matches_naive("feature_critic", naive, sizes=sizes, **settings)
    assert len(done.state.held_out) > 1
    for got, expected in zip(done.algorithm.critic.parameters(), done.model.critic.parameters(), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_second_derivative(build: Any, toy_batches: Any, cross_entropy: Any) -> None:
    """Compare the gradient of the critic's step with finite differences of J for ω."""
    settings = {"lr": LR, "critic_lr": 0.0, "critic_beta": 1.0, "critic_width": 2}
    algorithm, untouched = (build("feature_critic", **settings).double() for _ in range(2))
    batches = [(x.double(), y) for x, y in toy_batches(0, n=2)]
    torch.manual_seed(0)
    algorithm.update(batches)
    torch.manual_seed(0)
    test = batches.pop(int(torch.randint(2, ())))
    theta, omega = list(untouched.backbone.parameters()), tuple(untouched.critic.parameters())

    def meta(*_: Tensor) -> Tensor:
        main, extra = step_losses(untouched, batches, 1.0, 0.0, cross_entropy)
        g_main = torch.autograd.grad(main, theta, retain_graph=True)
        g_extra = torch.autograd.grad(extra, theta, create_graph=True)
        return 1e3 * meta_loss(untouched, test, g_main, g_extra, 1.0, 0.0, cross_entropy)

    assert torch.autograd.gradcheck(meta, omega)
    for got, expected in zip(algorithm.critic.parameters(), torch.autograd.grad(meta(), omega), strict=True):
        assert expected.any()
        torch.testing.assert_close(1e3 * got.grad, expected, rtol=1e-9, atol=1e-12)


def test_one_domain_as_it_is_is_refused(build: Callable[..., Algorithm]) -> None:
    task = Task(("across", "down", "chequer"), ("warm",), 16, lambda: SmallCNN(width=8))
    with pytest.raises(InputError, match="feature_critic needs at least 2 source domains, got 1: set single_source"):
        build("feature_critic", task, single_source="native")
