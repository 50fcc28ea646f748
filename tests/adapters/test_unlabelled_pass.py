"""One pass without labels: the adapter learns as if it had answered, and reports how far it is."""

from collections.abc import Callable

import torch

from itta.adapters import adapt
from itta.adapters.unlabelled_pass import observe_all
from itta.algorithms import Algorithm
from itta.algorithms.base import Batch


def test_the_adapter_learns_as_if_it_had_answered(
    trained: Callable[..., Algorithm], toy_batches: Callable[..., list[Batch]]
) -> None:
    model, batches = trained("itta"), [x for x, _ in toy_batches(7, n=5)]
    observed, answered = adapt(model, "itta", lr=0.03), adapt(model, "itta", lr=0.03)
    start = observed.state_dict()
    reported: list[tuple[str, int, int]] = []
    observe_all(observed, iter(batches), 5 * len(batches), lambda *args: reported.append(args))
    for x in batches:
        answered(x)
    for name, tensor in answered.state_dict().items():
        torch.testing.assert_close(observed.state_dict()[name], tensor)
    assert any(not torch.equal(tensor, start[name]) for name, tensor in observed.state_dict().items())
    assert reported == [("itta", 5 * n, 5 * len(batches)) for n in range(1, len(batches) + 1)]
