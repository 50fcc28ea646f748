"""Which images of a target are worth a label."""

from types import SimpleNamespace

import numpy as np
import pytest

from itta.data.target import Target
from itta.errors import InputError
from itta.metrics.outcome import Outcome
from itta.run.compare import Comparison
from itta.run.label_sample import draw_sample


@pytest.fixture
def comparison() -> Comparison:
    """200 images in random order, of which each tenth changed its answer."""
    rng = np.random.default_rng(0)
    n = 200
    order = rng.permutation(n)
    after = rng.integers(0, 3, n)
    before = np.where(np.arange(n) % 10 == 0, (after + 1) % 3, after)
    unknown = np.full(n, -1)
    images = SimpleNamespace(names=[f"{i}.png" for i in range(n)])
    outcomes = [Outcome(order, unknown, answers, rng.random(n)) for answers in (before, after)]
    target = Target("night", images, np.arange(n), False)  # type: ignore[arg-type]
    return Comparison(target, SimpleNamespace(name="itta+"), *outcomes)  # type: ignore[arg-type]


def test_changed_images_come_first_and_strata_follow(comparison: Comparison) -> None:
    plan = draw_sample(comparison, ("a", "b", "c"), "model", 30)
    assert len(plan.sample) == len({s.number for s in plan.sample}) == 30
    assert [s.stratum == "changed" for s in plan.sample] == [True] * 18 + [False] * 12
    assert all((s.before != s.after) == (s.stratum == "changed") for s in plan.sample)
    assert plan.sizes == {"changed": 20, "unsure": 60, "middling": 60, "sure": 60}
    place = {int(number): i for i, number in enumerate(comparison.after.indices)}
    for s in plan.sample:
        assert s.image == f"{s.number}.png"
        assert s.after == comparison.after.predictions[place[s.number]]
    assert {s.stratum for s in plan.sample} == {"changed", "unsure", "middling", "sure"}


def test_a_larger_budget_keeps_the_images_of_a_smaller_one(comparison: Comparison) -> None:
    small, large = (draw_sample(comparison, ("a", "b", "c"), "model", budget) for budget in (20, 60))
    assert small.id == large.id
    assert {s.number for s in small.sample} < {s.number for s in large.sample}
    of_changed = [[s.number for s in plan.sample if s.stratum == "changed"] for plan in (small, large)]
    assert of_changed[1][: len(of_changed[0])] == of_changed[0]  # the order of a sequential test
    assert draw_sample(comparison, ("a", "b", "c"), "other", 20).id != small.id


def test_everything_can_be_labelled(comparison: Comparison) -> None:
    assert len(draw_sample(comparison, ("a", "b", "c"), "model", 500).sample) == 200
    with pytest.raises(InputError, match="--budget must be at least 1, got 0"):
        draw_sample(comparison, ("a", "b", "c"), "model", 0)
