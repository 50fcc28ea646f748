"""Tests share trained models: each test gets a copy, and cannot tell it from a model trained for it alone."""

from collections.abc import Callable

import pytest
import torch

from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.nn.optimizer import optimizer_tensors
from tests.fixtures.toy import Trainings

Batches = Callable[..., list[Batch]]


def state_of(model: Algorithm) -> dict[str, torch.Tensor]:
    """Weights, moments of the optimisers, gradients, and the statistics of the source data."""
    found = {**model.state_dict(), **{f"fisher {k}": v for k, v in (model.fisher or {}).items()}}
    for name, optimizer in model.optimizers.items():
        found |= {f"{name} {k}": v for k, v in optimizer_tensors(optimizer).items()}
    found |= {f"gradient {k}": p.grad for k, p in model.named_parameters() if p.grad is not None}
    assert model.style_bank
    return found | {f"style {k}": v for k, v in model.style_bank.tensors().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(v, b[k]) for k, v in a.items())


@pytest.mark.parametrize(("name", "batch_norm"), [("dann", False), ("itta", False), ("ttt++", True)])
def test_a_copy_is_the_model_and_nobody_elses(
    name: str,
    batch_norm: bool,
    trained: Callable[..., Algorithm],
    trainings: Trainings,
    toy_batches: Batches,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = trained(name, batch_norm=batch_norm)
    harmed = trained(name, batch_norm=batch_norm)
    random_state = torch.get_rng_state()
    for tensor in state_of(harmed).values():
        tensor.zero_()
    second = trained(name, batch_norm=batch_norm)
    monkeypatch.setattr(trainings, "done", {})
    alone = trained(name, batch_norm=batch_norm)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert same(state_of(first), state_of(alone))
    assert same(state_of(second), state_of(alone))
    for model in (second, alone):  # the optimisers move the copy's own weights
        torch.manual_seed(0)
        model.train().update(toy_batches(0))
    assert same(state_of(second), state_of(alone))
    assert not same(state_of(first), state_of(second))
