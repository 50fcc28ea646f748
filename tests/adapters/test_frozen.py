"""A frozen adapter predicts as the adapter does at that moment, and does not learn."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from itta.adapters import ADAPTERS, adapt
from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.errors import InputError

Trained = Callable[..., Algorithm]

# adapter -> settings with which it learns much from the few images here
FREEZES: dict[str, dict[str, Any]] = {
    "source": {},
    "itta": {"lr": 1e-2},
    "itta+": {"neighbours": False},
    "t3a": {},
    "shot": {"lr": 1e-2},
    "note": {"lr": 1e-2, "every": 12},
    "rotta": {"lr": 1e-2, "every": 12, "nu": 0.5},
    "ttt": {"lr": 1e-2, "views": 4},
    "ttt++": {"lr": 1e-2},
    "memo": {"episodic": False, "lr": 1e-2, "views": 4},
    "mt3": {"episodic": False, "lr": 1e-2, "views": 4},
}
BATCH_STATISTICS = "batch normalisation uses the statistics of each batch"
REFUSES = {
    "roid": BATCH_STATISTICS,
    "tent": BATCH_STATISTICS,
    "eata": BATCH_STATISTICS,
    "bn_adapt": "depends on the rest of the batch",
    "lame": "depends on the rest of the batch",
    "cotta": "on random views",
}


@pytest.fixture
def stream(toy_batches: Callable[..., list[Batch]]) -> list[Tensor]:
    return [toy_batches(200 + i, n=12)[1][0].double() for i in range(3)]


def answers(adapter: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Predictions of the adapter and of its frozen form, from the same state."""
    if adapter.predicts == "after":
        own = adapter(x)
        last = -1 if adapter.name in ("ttt", "memo", "mt3", "itta+") else 0  # they learn from one image after another
        return own[last:], adapter.frozen()(x)[last:]
    frozen = adapter.frozen()
    return adapter(x), frozen(x)


def check(adapter: Any, source: Any, stream: list[Tensor]) -> None:
    for x in stream[:2]:
        adapter(x)
    probe = stream[2][:6]  # fewer than `every`: no update is due
    own, frozen = answers(adapter, probe)
    assert not frozen.requires_grad
    torch.testing.assert_close(frozen, own, rtol=0, atol=1e-12)
    changed = (frozen - source(probe)[-len(frozen) :]).abs().max() > 1e-4
    assert changed == (adapter.needs.changes != "nothing")


def test_every_adapter_is_either_frozen_or_refused() -> None:
    assert {*FREEZES, *REFUSES, "sar"} == set(ADAPTERS)


@pytest.mark.parametrize("name", FREEZES)
def test_it_answers_as_the_adapter_does(name: str, trained_for: Trained, stream: list[Tensor]) -> None:
    model = trained_for(name).double()
    check(adapt(model, name, guard=False, **FREEZES[name]), adapt(model, "source"), stream)


@pytest.mark.parametrize(
    "settings",
    [
        {"per": "channel"},
        {"blocks": ("block4",)},
        {"blocks": ("block3", "block2"), "depth": 1},
        {"scope": "norm"},
        {"scope": "all"},
        {"scope": "head", "objective": "entropy"},
    ],
    ids=str,
)
def test_itta_in_every_scope(settings: dict[str, Any], trained: Trained, stream: list[Tensor]) -> None:
    model = trained("itta", batch_norm=True).double()
    check(adapt(model, "itta", lr=1e-2, **settings), adapt(model, "source"), stream)


@pytest.mark.parametrize(
    "settings", [{"answers": ("plain",)}, {"answers": ("plain", "restyled")}, {"blocks": ("block2", "block1")}], ids=str
)
def test_itta_plus_in_its_other_forms(settings: dict[str, Any], trained: Trained, stream: list[Tensor]) -> None:
    model = trained("erm").double()
    adapter = adapt(model, "itta+", guard=False, neighbours=False, **settings)
    check(adapter, adapt(model, "source"), stream)


@pytest.mark.parametrize("name", REFUSES)
def test_what_is_no_fixed_function_is_refused(name: str, trained_for: Trained) -> None:
    with pytest.raises(InputError, match=rf"^{name} cannot be frozen: .*{REFUSES[name]}.*Choose another adapter"):
        adapt(trained_for(name, steps=0), name).frozen()


def test_sar_is_frozen_without_batch_normalisation_only(trained: Trained, stream: list[Tensor]) -> None:
    model = trained("erm").double()
    check(adapt(model, "sar", margin=2.0, lr=1e-1, recover=0.0), adapt(model, "source"), stream)
    with pytest.raises(InputError, match=BATCH_STATISTICS):
        adapt(trained("erm", batch_norm=True), "sar").frozen()


@pytest.mark.parametrize("name", ["itta", "shot", "memo"])
def test_episodic_keeps_nothing_to_freeze(name: str, trained_for: Trained) -> None:
    with pytest.raises(InputError, match=rf"{name} with episodic=True cannot be frozen: it keeps no update"):
        adapt(trained_for(name, steps=0), name, episodic=True).frozen()


@pytest.mark.parametrize("algorithm", ["arm", "mtl"])
def test_a_model_that_predicts_by_batch_is_refused(algorithm: str, build: Trained) -> None:
    with pytest.raises(InputError, match=rf"trained with '{algorithm}' cannot be frozen"):
        adapt(build(algorithm), "source").frozen()


@pytest.mark.parametrize("name", ["source", "itta", "t3a"])
def test_neither_moves_the_other(name: str, trained_for: Trained, stream: list[Tensor]) -> None:
    adapter = adapt(trained_for(name).double(), name, **FREEZES[name])
    adapter(stream[0])
    frozen = adapter.frozen()
    assert not frozen.training
    before, state = frozen(stream[1]), adapter.state_dict()
    adapter(stream[2])
    assert torch.equal(frozen(stream[1]), before)
    adapter.load_state_dict(state)
    with torch.no_grad():
        for p in frozen.parameters():
            p.zero_()
    other = adapt(trained_for(name).double(), name, **FREEZES[name])
    other(stream[0])
    assert torch.equal(adapter(stream[1]), other(stream[1]))


def test_a_guard_gives_what_it_would_answer_with(trained: Trained, stream: list[Tensor]) -> None:
    model = trained("itta").double()
    guard: Any = adapt(model, "itta", guard={"trial": 100, "probation": 0}, lr=1e-2)
    guard(stream[0])
    x = stream[1]
    assert torch.equal(guard.frozen()(x), guard.inner.frozen()(x))
    source = adapt(model, "source")(x)
    assert not torch.allclose(guard.frozen()(x), source)
    guard.take_back()
    guard.inner(stream[0])  # it learns on trial, but does not predict
    assert torch.equal(guard.frozen()(x), source)


@pytest.mark.parametrize("name", ["itta", "ttt++", "tent", "t3a"])
def test_observing_learns_what_a_call_learns(name: str, trained_for: Trained, stream: list[Tensor]) -> None:
    model = trained_for(name).double()
    one, other = adapt(model, name), adapt(model, name)
    for x in stream[:2]:
        assert one.observe(x) is None
        other(x)
    own, expected = one.state_dict(), other.state_dict()
    assert own.keys() == expected.keys()
    assert all(torch.equal(v, expected[k]) for k, v in own.items())


@pytest.mark.parametrize("name", ["itta", "ttt++"])
def test_observing_leaves_the_answer_out(
    name: str, trained_for: Trained, stream: list[Tensor], counting_passes: Any
) -> None:
    adapter = adapt(trained_for(name).double(), name)
    with torch.no_grad(), counting_passes(adapter, "head") as passes:
        adapter.observe(stream[0])
        assert passes == []
        adapter(stream[0])
    assert passes == [len(stream[0])]


def test_observing_checks_the_batch(trained: Trained, stream: list[Tensor]) -> None:
    with pytest.raises(InputError, match="NaN"):
        adapt(trained("itta", steps=0).double(), "itta").observe(stream[0] * torch.nan)


def test_frozen_is_a_module(trained: Trained) -> None:
    assert isinstance(adapt(trained("itta", steps=0), "itta").frozen(), nn.Module)
