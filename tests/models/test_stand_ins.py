"""The table of stand-ins as tensors in a file that somebody else may have written."""

from collections.abc import Callable

import pytest
import torch

from itta.errors import InputError
from itta.models.early_reader import EarlyReader
from itta.models.stand_ins import StandIns


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    columns = ("accuracy", "gain", "kind", "images", "confidence")
    return {name: torch.tensor([0.5, 0.25]) for name in columns} | {"threshold": torch.tensor(-0.5)}


def test_a_table_comes_back(tensors: dict[str, torch.Tensor]) -> None:
    known = StandIns.from_tensors(tensors)
    assert known.of_clean("confidence") == 0.5
    again = known.tensors()
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[name], tensors[name]) for name in tensors)


def test_a_reader_comes_back(tensors: dict[str, torch.Tensor]) -> None:
    reader = EarlyReader(torch.rand(3, 5), torch.rand(3))
    known = StandIns.from_tensors({**tensors, "reader weight": reader.weight, "reader bias": reader.bias})
    assert known.reader is not None
    torch.testing.assert_close(known.reader.scores(torch.ones(1, 5))[0], reader.weight.sum(1) + reader.bias)
    assert known.tensors().keys() == tensors.keys() | {"reader weight", "reader bias"}
    known.check_classes(3)
    with pytest.raises(InputError, match="has 3 classes, not 4"):
        known.check_classes(4)
    with pytest.raises(InputError, match="reads 5 features.* gives 6"):
        known.reader.scores(torch.ones(1, 6))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t.update({"reader weight": torch.zeros(3, 5)}), "reader among the stand-ins"),
        (lambda t: t.update({"reader weight": torch.zeros(3, 5), "reader bias": torch.zeros(4)}), "wrong shape"),
        (lambda t: t.update({"reader weight": torch.zeros(3), "reader bias": torch.zeros(3)}), "wrong shape"),
        (lambda t: t.pop("gain"), "incomplete"),
        (lambda t: t.pop("threshold"), "incomplete"),
        (lambda t: t.update(kind=torch.zeros(3)), "no table"),
        (lambda t: t.update(kind=torch.zeros(2, 2)), "no table"),
        (lambda t: t.update(gain=torch.tensor([0.1, float("nan")])), "not finite"),
    ],
)
def test_a_damaged_table_is_refused(
    tensors: dict[str, torch.Tensor], change: Callable[[dict[str, torch.Tensor]], object], reason: str
) -> None:
    change(tensors)
    with pytest.raises(InputError, match=reason):
        StandIns.from_tensors(tensors)
