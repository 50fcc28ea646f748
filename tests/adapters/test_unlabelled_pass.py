"""One pass without labels: the same images, in the same order, with the same effect as answering them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from itta.adapters import Adapter, adapt
from itta.adapters.unlabelled_pass import observe_target
from itta.data.loaders import stream
from itta.data.target import Target


class Numbered:
    """Images that show their own number."""

    labels, groups = np.full(9, -1), None
    names = [f"image {i}" for i in range(9)]

    def __len__(self) -> int:
        return 9

    def read(self, indices: np.ndarray) -> torch.Tensor:
        return torch.stack([torch.full((3, 16, 16), 20 * int(i), dtype=torch.uint8) for i in indices])


TARGET = Target("numbers", Numbered(), np.array([8, 0, 1, 2, 3, 5, 7]), labelled=False)  # type: ignore[arg-type]


class Witness:
    """An adapter that notes what it sees."""

    name = "witness"

    def __init__(self, least: int) -> None:
        self.needs = replace(Adapter.needs, batch=least)
        self.seen: list[list[int]] = []

    def observe(self, x: torch.Tensor) -> None:
        self.seen.append([round(float(v) * 255 / 20) for v in x[:, 0, 0, 0]])


@pytest.mark.parametrize(("least", "sizes"), [(1, [3, 3, 1]), (2, [3, 4])])
def test_every_image_once_in_batches_that_the_adapter_accepts(least: int, sizes: list[int]) -> None:
    witness, reported = Witness(least), []
    observe_target(witness, TARGET, 3, 0, lambda *args: reported.append(args))  # type: ignore[arg-type]
    assert [len(batch) for batch in witness.seen] == sizes
    seen = [i for batch in witness.seen for i in batch]
    assert sorted(seen) == sorted(TARGET.indices)
    assert seen != TARGET.indices.tolist()  # in the order of the seed
    assert reported == [("witness", n, 7) for n in np.cumsum(sizes)]


def test_a_target_with_an_order_keeps_it() -> None:
    witness = Witness(1)
    observe_target(witness, replace(TARGET, ordered=True), 3, 0)  # type: ignore[arg-type]
    assert [i for batch in witness.seen for i in batch] == TARGET.indices.tolist()


def test_the_adapter_learns_as_if_it_had_answered(trained) -> None:
    model = trained("itta")
    observed, answered = adapt(model, "itta", lr=0.03), adapt(model, "itta", lr=0.03)
    start = observed.state_dict()
    observe_target(observed, TARGET, 3, 5)
    for _, x, _ in stream(TARGET.images, TARGET.indices, 3, 5, answered.needs.batch):
        answered(x)
    for name, tensor in answered.state_dict().items():
        torch.testing.assert_close(observed.state_dict()[name], tensor)
    assert any(not torch.equal(tensor, start[name]) for name, tensor in observed.state_dict().items())
