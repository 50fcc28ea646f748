"""MetaReg against its formula, in both phases: heads one by one, φ's gradient through every unrolled step."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from itta.algorithms import Algorithm, Task
from itta.algorithms.base import Batch
from itta.errors import InputError
from itta.nn.small_cnn import SmallCNN

INNER_LR = 0.1


def regulariser(phi: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    return sum((f * w.abs()).sum() for f, w in zip(phi, weights))


def held_out_loss(
    head: nn.Module, train: Batch, test: Batch, phi: Sequence[Tensor], inner_steps: int, ce: Any
) -> Tensor:
    """Return L_b after the unrolled steps of a linear head. The batches hold features."""
    w, b = (p.detach().clone().requires_grad_() for p in (head.weight, head.bias))
    for _ in range(inner_steps):
        loss = ce(train[0] @ w.T + b, train[1]) + regulariser(phi, [w, b])
        g_w, g_b = torch.autograd.grad(loss, [w, b], create_graph=True)
        w, b = w - INNER_LR * g_w, b - INNER_LR * g_b
    return ce(test[0] @ w.T + b, test[1])


def meta_step(
    model: Algorithm, batches: list[Batch], state: SimpleNamespace, inner_steps: int, ce: Any
) -> dict[str, float]:
    """Take a step of the first phase."""
    a, b = torch.randperm(len(batches))[:2].tolist()
    z = [model.backbone(x) for x, _ in batches]
    loss = sum(ce(head(z_e), y) for head, z_e, (_, y) in zip(model.heads, z, batches))
    phi = [model.phi["weight"], model.phi["bias"]]
    train, test = (z[a].detach(), batches[a][1]), (z[b].detach(), batches[b][1])
    held_out = held_out_loss(model.heads[a], train, test, phi, inner_steps, ce)
    moved = [*model.backbone.parameters(), *model.heads.parameters()]
    g_phi, g_moved = torch.autograd.grad(held_out, phi), torch.autograd.grad(loss, moved)
    state.phi_adam.step(phi, g_phi)
    state.meta_adam.step(moved, g_moved)
    with torch.no_grad():
        for each in phi:
            each[each < 0] = 0
    return {"loss": loss.item(), "held_out": held_out.item()}


def final_step(model: Algorithm, batches: list[Batch], state: SimpleNamespace, ce: Any) -> dict[str, float]:
    """Take a step of the second phase."""
    risk = sum(ce(model.head(model.backbone(x)), y) for x, y in batches)
    penalty = regulariser([model.phi["weight"].detach(), model.phi["bias"].detach()], list(model.head.parameters()))
    parameters = [*model.backbone.parameters(), *model.head.parameters()]
    state.main_adam.step(parameters, torch.autograd.grad(risk + penalty, parameters))
    return {"loss": risk.item(), "penalty": penalty.item()}


@pytest.mark.parametrize(
    ("meta_steps", "inner_steps", "sizes"),
    [(9, 1, (6, 6, 6)), (9, 3, (6, 5, 4)), (2, 3, (6, 5, 4)), (0, 3, (4, 3)), (1, 2, (1, 1, 1)), (2, 2, (8,))],
)
def test_four_updates(
    meta_steps: int,
    inner_steps: int,
    sizes: tuple[int, ...],
    assert_matches_naive: Callable[..., Any],
    naive_adam: Any,
    cross_entropy: Any,
) -> None:
    """Adam's first step on φ is three times as long as φ, so some entries must be clamped."""

    def naive(model: Algorithm, batches: list[Batch], state: SimpleNamespace) -> dict[str, float]:
        if not hasattr(state, "step"):
            state.step, state.phi_adam = 0, naive_adam(3e-3)
            state.meta_adam, state.main_adam = naive_adam(1e-2, 1e-2), naive_adam(1e-2, 1e-2)
        state.step += 1
        if state.step <= meta_steps:
            return meta_step(model, batches, state, inner_steps, cross_entropy)
        if state.step == meta_steps + 1:
            backbone, head = SmallCNN(width=8), nn.Linear(16, 3)
            model.backbone.load_state_dict(backbone.state_dict())
            model.head.load_state_dict(head.state_dict())
        return final_step(model, batches, state, cross_entropy)

    def predict(model: Algorithm, x: Tensor) -> Tensor:
        z = model.backbone(x)
        if meta_steps < 4:
            return model.head(z)
        return sum(head(z) for head in model.heads) / len(model.heads)

    settings = {"metareg_steps": meta_steps, "metareg_inner_steps": inner_steps, "metareg_inner_lr": INNER_LR}
    settings |= {"metareg_lr": 3e-3, "metareg_start": 1e-3}
    done = assert_matches_naive("metareg", naive, predict, sizes=sizes, steps=4, **settings)
    for name in ("weight", "bias"):
        torch.testing.assert_close(done.algorithm.phi[name], done.model.phi[name], rtol=1e-9, atol=1e-9)
    phi = done.algorithm.phi["weight"]
    assert (phi >= 0).all()
    if meta_steps == 0:
        torch.testing.assert_close(phi, torch.full_like(phi, 1e-3))
    else:
        assert (phi == 0).any()
        assert (phi > 2e-3).any()


def two_layers(n_in: int, n_out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(n_in, 3), nn.Tanh(), nn.Linear(3, n_out))


@pytest.mark.parametrize("make_head", [nn.Linear, two_layers])
def test_second_derivative(make_head: Callable[[int, int], nn.Module], build: Callable[..., Algorithm]) -> None:
    """Compare φ's gradient through three steps, for any head, with finite differences."""
    task = Task(("a", "b", "c"), ("warm", "cold"), 16, lambda: SmallCNN(width=8), make_head)
    algorithm = build("metareg", task, metareg_inner_steps=3, metareg_inner_lr=0.5, metareg_start=0.1).double()
    g = torch.Generator().manual_seed(0)
    train, test = (
        (torch.randn(5, 16, generator=g, dtype=torch.double), torch.randint(3, (5,), generator=g)) for _ in range(2)
    )
    assert torch.autograd.gradcheck(lambda *_: algorithm.held_out_loss(train, test, 0), tuple(algorithm.phi.values()))


def test_the_second_phase_starts_anew(build: Callable[..., Algorithm], toy_batches: Callable[..., list[Batch]]) -> None:
    """With a learning rate of 0, backbone and head are new ones of the task; φ and the heads do not change."""
    algorithm = build("metareg", lr=1e-2, metareg_steps=2)
    for step in range(2):
        assert "held_out" in algorithm.update(toy_batches(step))
    learned = {k: t.clone() for k, t in algorithm.state_dict().items()}
    algorithm.optimizers["main"].param_groups[0]["lr"] = 0.0
    torch.manual_seed(7)
    assert "penalty" in algorithm.update(toy_batches(2))
    torch.manual_seed(7)
    fresh = SmallCNN(width=8), nn.Linear(16, 3)
    for module, new in zip((algorithm.backbone, algorithm.head), fresh):
        assert all(torch.equal(p, q) for p, q in zip(module.parameters(), new.parameters(), strict=True))
    algorithm.optimizers["main"].param_groups[0]["lr"] = 1e-2
    algorithm.update(toy_batches(3))
    kept = [k for k in learned if k.startswith(("phi.", "heads."))]
    assert kept
    assert all(torch.equal(algorithm.state_dict()[k], learned[k]) for k in kept)


def test_one_domain_as_it_is_is_refused(build: Callable[..., Algorithm]) -> None:
    task = Task(("across", "down", "chequer"), ("warm",), 16, lambda: SmallCNN(width=8))
    with pytest.raises(InputError, match="metareg needs at least 2 source domains, got 1: set single_source"):
        build("metareg", task, single_source="native")
