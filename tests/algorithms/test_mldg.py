"""MLDG against its formula: a copy of the network and a new Adam for every inner step."""

import copy
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.errors import InputError

LR = 1e-2


def ring(order: list[int]) -> list[tuple[int, int]]:
    return [(order[k], order[(k + 1) % len(order)]) for k in range(len(order))]


def holdout(order: list[int], m: int) -> list[tuple[int, int]]:
    """Test on the last m domains; pair the k-th of the others with the (k mod m)-th of them."""
    n_train = len(order) - m
    return [(order[k], order[n_train + k % m]) for k in range(n_train)]


@pytest.fixture
def check(assert_matches_naive: Callable[..., Any], naive_adam: Any, cross_entropy: Any) -> Callable[..., None]:
    """(pairs, beta, dropout, decay, settings): compare three updates with the pairs of a permutation."""

    def run(
        pairs: Callable[[list[int]], list[tuple[int, int]]],
        beta: float,
        drop: float = 0.0,
        decay: float = 1e-2,
        **settings: Any,
    ) -> None:
        def gradient(model: Any, x: Tensor, y: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
            z = model.backbone(x)
            z = z * (torch.rand_like(z) >= drop) / (1 - drop) if drop else z
            loss = cross_entropy(model.head(z), y)
            return loss, torch.autograd.grad(loss, [*model.backbone.parameters(), *model.head.parameters()])

        def naive(model: Algorithm, batches: list[Batch], state: SimpleNamespace) -> dict[str, float]:
            if not hasattr(state, "adam"):
                state.adam = naive_adam(LR, decay)
            parameters = [*model.backbone.parameters(), *model.head.parameters()]
            total, loss = [torch.zeros_like(p) for p in parameters], 0.0
            for i, j in pairs(torch.randperm(len(batches)).tolist()):
                n = min(len(batches[i][0]), len(batches[j][0]))
                train_loss, g_train = gradient(model, batches[i][0][:n], batches[i][1][:n])
                inner = SimpleNamespace(backbone=copy.deepcopy(model.backbone), head=copy.deepcopy(model.head))
                naive_adam(LR, decay).step([*inner.backbone.parameters(), *inner.head.parameters()], g_train)
                test_loss, g_test = gradient(inner, batches[j][0][:n], batches[j][1][:n])
                total = [t + (a + beta * b) / len(batches) for t, a, b in zip(total, g_train, g_test)]
                loss += (train_loss + beta * test_loss).item() / len(batches)
            state.adam.step(parameters, total)
            return {"loss": loss}

        assert_matches_naive("mldg", naive, lr=LR, weight_decay=decay, mldg_beta=beta, resnet_dropout=drop, **settings)

    return run


@pytest.mark.parametrize(("sizes", "beta"), [((6, 6, 6), 1.0), ((6, 5, 4), 0.3), ((5, 6), 3.0), ((8,), 0.3)])
def test_ring(sizes: Sequence[int], beta: float, check: Callable[..., None]) -> None:
    check(ring, beta, sizes=sizes, mldg_pairs="ring")


def test_ring_without_decay(check: Callable[..., None]) -> None:
    check(ring, 0.7, decay=0.0, mldg_pairs="ring")


def test_every_pass_drops_features_anew(check: Callable[..., None]) -> None:
    check(ring, 0.7, drop=0.5, mldg_pairs="ring")


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize(("sizes", "m"), [((6, 6, 6), 2), ((6, 5, 4), 1), ((3, 3, 4, 3, 3), 2)])
@pytest.mark.slow
def test_holdout(sizes: Sequence[int], m: int, reference: bool, check: Callable[..., None]) -> None:
    settings = {"sizes": sizes, "n_meta_test": m, "mldg_pairs": "holdout", "reference": reference}
    check(lambda order: holdout(order, m), 0.7, **settings)


@pytest.mark.parametrize(("sizes", "m"), [((6, 5), 2), ((6, 5, 4), 5)])
def test_one_domain_is_left_to_train_on(sizes: Sequence[int], m: int, check: Callable[..., None]) -> None:
    check(lambda order: holdout(order, len(order) - 1), 0.7, sizes=sizes, n_meta_test=m, mldg_pairs="holdout")


@pytest.mark.parametrize(("sizes", "m"), [((6, 5), 2), ((6, 5, 4), 5)])
def test_the_reference_learns_nothing_when_none_is_left(
    sizes: Sequence[int], m: int, check: Callable[..., None]
) -> None:
    """The loss is 0 and the weights only decay."""
    check(lambda order: [], 0.7, sizes=sizes, n_meta_test=m, mldg_pairs="holdout", reference=True)


def test_a_lone_domain_as_it_is_is_refused(assert_matches_naive: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match="mldg needs at least 2 source domains, got 1: set single_source=split"):
        assert_matches_naive("mldg", lambda *_: {}, sizes=(6,), single_source="native")
