"""Shared by the tests of several adapters: a stream, optimisers written out, and a counter of passes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from itta.adapters import Adapter
from itta.algorithms.base import Batch


@pytest.fixture
def stream(toy_batches: Callable[..., list[Batch]]) -> list[Tensor]:
    """Five batches of one domain; the last two are smaller. Many files define their own stream."""
    return [toy_batches(200 + i, n=12)[1][0][: 12 if i < 3 else 5] for i in range(5)]


class NaiveSGD:
    """SGD with momentum, written out tensor by tensor."""

    def __init__(self, lr: float, momentum: float) -> None:
        self.lr, self.momentum = lr, momentum
        self.restart()

    def restart(self) -> None:
        self.velocity: dict[int, Tensor] = {}

    @torch.no_grad()
    def step(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        for p, g in zip(parameters, gradients, strict=True):
            self.velocity[id(p)] = self.momentum * self.velocity.get(id(p), torch.zeros_like(p)) + g
            p -= self.lr * self.velocity[id(p)]


@pytest.fixture
def naive_optimizer(naive_adam: Any) -> Callable[..., Any]:
    """(lr, "adam" or "sgd", momentum of SGD) -> an optimiser with ``step(parameters, gradients)`` and ``restart()``.

    It identifies parameters by object: each step must get the same tensors.
    """

    def make(lr: float, optimizer: str, momentum: float = 0.0) -> Any:
        assert optimizer in ("adam", "sgd")
        return naive_adam(lr) if optimizer == "adam" else NaiveSGD(lr, momentum)

    return make


@pytest.fixture
def counting_passes() -> Callable[..., AbstractContextManager[list[int]]]:
    """(adapter, part) -> a list that records, inside ``with``, the batch size of each pass through that part."""

    @contextmanager
    def counting(adapter: Adapter, part: str = "head") -> Iterator[list[int]]:
        passes: list[int] = []
        watched = adapter.model.get_submodule(part)
        handle = watched.register_forward_pre_hook(lambda module, args: passes.append(len(args[0])))
        try:
            yield passes
        finally:
            handle.remove()

    return counting
