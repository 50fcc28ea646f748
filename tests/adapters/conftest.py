"""What tests of several adapters share: a stream, and a count of the passes that an adapter runs."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from torch import Tensor

from itta.adapters import Adapter
from itta.algorithms.base import Batch


@pytest.fixture
def stream(toy_batches: Callable[..., list[Batch]]) -> list[Tensor]:
    """Five batches of one domain, the last two smaller; many files have a stream of their own."""
    return [toy_batches(200 + i, n=12)[1][0][: 12 if i < 3 else 5] for i in range(5)]


@pytest.fixture
def counting_passes() -> Callable[..., AbstractContextManager[list[int]]]:
    """(adapter, part) -> a list that, within ``with``, notes the batch size of each pass through the model's part."""

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
