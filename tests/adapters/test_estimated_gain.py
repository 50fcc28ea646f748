"""The watch of the estimated gain: an adapter that probably loses is put on trial, one that helps is not."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from itta.adapters import Guard, adapt
from itta.adapters.base import Adapter
from itta.adapters.estimated_gain import LEAST, Tally
from itta.adapters.source import Source
from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.estimators.full_collection import collect
from itta.functional.corruptions import CORRUPTIONS
from itta.hparams import default
from itta.models.stand_ins import StandIns

Batches = Callable[..., list[Batch]]
ALONE = {"probation": 0, "budget": 1e9, "min_balance": 0.0, "min_entropy_ratio": 0.0, "max_norm_ratio": 1e9}


class Rolled(Source):
    """Every third answer is another class than the trained model's."""

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        return torch.where((torch.arange(len(x)) % 3 == 0).unsqueeze(1), logits.roll(1, 1), logits)


@pytest.fixture
def model(trained: Callable[..., Algorithm], toy_batches: Batches) -> Algorithm:
    found = trained("erm", steps=25)
    batches = [toy_batches(700 + i, n=32) for i in range(2)]
    return collect(found, {d: [b[i] for b in batches] for i, d in enumerate(("warm", "cold"))})


@pytest.fixture
def plain_images(toy_batches: Batches) -> list[Batch]:
    return [toy_batches(900 + i, n=16)[1] for i in range(16)]


@pytest.fixture
def bright_images(plain_images: list[Batch]) -> list[Batch]:
    """Too bright, so that the trained model makes mistakes."""
    generator = torch.Generator().manual_seed(0)
    return [(CORRUPTIONS["glare"](x, 0.9, generator), y) for x, y in plain_images]


def accuracy(adapter: Adapter, target: list[Batch]) -> float:
    return float(torch.cat([adapter(x).argmax(1) == y for x, y in target]).float().mean())


@pytest.mark.slow
def test_an_adapter_that_ruins_answers_is_put_on_trial(model: Algorithm, plain_images: list[Batch]) -> None:
    """All other watches are off."""
    plain = accuracy(adapt(model, "source"), plain_images)
    ruined = accuracy(Rolled(model, default(Source.Hparams)), plain_images)
    assert ruined < plain - 0.2
    guard = Guard(model, Rolled(model, default(Source.Hparams)), default(Guard.Hparams, **ALONE))
    assert accuracy(guard, plain_images) > plain - 0.6 * (plain - ruined)
    first = guard.log[0]
    assert (first.watch, first.action) == ("estimated gain", "rolled back")
    assert first.image <= 4 * LEAST  # one image of three is changed
    assert set(guard.counts) == {"estimated gain"}
    off = Guard(model, Rolled(model, default(Source.Hparams)), default(Guard.Hparams, **ALONE, max_loss_chance=1.0))
    assert accuracy(off, plain_images) == ruined


@pytest.mark.slow
def test_an_adapter_that_helps_is_left_alone(model: Algorithm, bright_images: list[Batch]) -> None:
    guard = adapt(model, "t3a", guard=ALONE)
    assert accuracy(guard, bright_images) > accuracy(adapt(model, "source"), bright_images) + 0.05
    assert isinstance(guard, Guard)
    assert guard.tally.sums[0] >= LEAST  # it could have been put on trial
    assert guard.counts == {}


def table(changed: float, referee: float, gain: float, rows: int = 20) -> StandIns:
    """Stand-ins that are all alike, with 64 images each."""
    values = {"changed": changed, "referee gain": referee, "gain": gain, "images": 64.0, "accuracy": 0.5}
    columns = {name: torch.full((rows,), value) for name, value in values.items()}
    return StandIns({**columns, "kind": torch.arange(rows).float()}, 0.0)


def test_the_worth_of_a_change_is_how_much_better_it_was_than_believed() -> None:
    many = table(changed=0.25, referee=-0.05, gain=0.1).worth_of_a_change()
    assert many is not None
    assert many[0] == pytest.approx((320 * 0.6 + 30 * 0.25) / 350, abs=1e-4)  # (0.1 + 0.05)/0.25 = 0.6
    none = table(changed=0.0, referee=0.0, gain=0.0).worth_of_a_change()
    assert none == pytest.approx((0.25, 0.2))  # the usual values
    older = table(0.25, -0.05, 0.1)
    assert StandIns({k: v for k, v in older.columns.items() if k != "referee gain"}, 0.0).worth_of_a_change() is None


def test_the_tally_fades_and_says_nothing_of_few_changes() -> None:
    sure = torch.tensor([[4.0, 0.0]]).repeat(10, 1)
    tally = Tally(table(changed=0.25, referee=-0.05, gain=0.0))
    tally.add(sure.flip(1), sure, sure)
    assert tally.sums[0] == 10
    assert tally.chance_of_loss == 0.0
    for _ in range(2):
        tally.add(sure.flip(1), sure, sure)
    assert tally.chance_of_loss > 0.99
    for _ in range(300):
        tally.add(sure, sure, sure)
    assert tally.sums[0] < 0.01
    assert tally.chance_of_loss == 0.0


def test_a_model_without_stand_ins_is_not_judged() -> None:
    tally, sure = Tally(None), torch.tensor([[4.0, 0.0]]).repeat(50, 1)
    tally.add(sure.flip(1), sure, sure)
    assert tally.chance_of_loss == 0.0
