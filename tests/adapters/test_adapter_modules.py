"""Adapters are modules: they move with all their state, keep their modes, and refuse half precision."""

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from itta.adapters import ADAPTERS, Adapter, adapt
from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.errors import InputError, InputWarning
from tests.fixtures.toy import FEW_VIEWS, mark_slow

pytestmark = pytest.mark.slow

Trained = Callable[..., Algorithm]
SLOW = ("memo", "mt3", "ttt")
EVERY = mark_slow(ADAPTERS, SLOW)
WITHOUT_GUARD = [pytest.param(n, False, marks=[pytest.mark.slow] if n in SLOW else []) for n in ADAPTERS]
ON_THE_CPU = (  # by design
    "stream.", "means.", "numbers", "debt", "generator", "snapshot.", "optimizer.",
    "scores", "entropies", "style.change.", "style.weight",  # small, and the host computes with them
    "extra.labels", "extra.predicted", "extra.entropy", "extra.age", "extra.seen",  # the host decides by them
)  # fmt: skip


@pytest.fixture
def stream(toy_batches: Callable[..., list[Batch]]) -> list[Tensor]:
    return [toy_batches(200 + i, n=12)[1][0] for i in range(3)]


def make(trained_for: Trained, name: str, guard: bool = False) -> Adapter:
    return adapt(trained_for(name), name, guard=guard, **FEW_VIEWS.get(name, {}))


@pytest.mark.parametrize(("name", "guard"), [*WITHOUT_GUARD, ("tent", True), ("itta+", True)])
def test_moved_before_the_first_batch_equals_made_there(
    name: str, guard: bool, trained_for: Trained, stream: list[Tensor]
) -> None:
    moved = make(trained_for, name, guard).to(torch.float64)
    made = adapt(trained_for(name).double(), name, guard=guard, **FEW_VIEWS.get(name, {}))
    for x in stream[:2]:
        got = moved(x.double())
        assert got.dtype == torch.float64
        torch.testing.assert_close(got, made(x.double()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", EVERY)
def test_moved_along_the_way_it_goes_on(name: str, trained_for: Trained, stream: list[Tensor]) -> None:
    """What was learned moves too: later answers are those of the adapter that stayed, up to rounding."""
    stayed, moved = make(trained_for, name), make(trained_for, name)
    for x in stream[:2]:
        stayed(x)
        moved(x)
    moved.to(torch.float64)
    torch.testing.assert_close(moved(stream[2].double()).float(), stayed(stream[2]), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", EVERY)
def test_all_that_a_network_meets_moves(name: str, trained_for: Trained, stream: list[Tensor]) -> None:
    adapter = make(trained_for, name)
    adapter(stream[0])
    adapter.to("meta")
    assert all(p.is_meta for p in adapter.parameters())
    left = [k for k, v in adapter.state_dict().items() if not v.is_meta and not k.startswith(ON_THE_CPU)]
    assert left == []
    optimizer = getattr(adapter, "optimizer", None)
    if optimizer is not None:
        moments = [v for entry in optimizer.state.values() for k, v in entry.items() if k != "step"]
        assert all(v is None or v.is_meta for v in moments)


@pytest.mark.parametrize("guard", [False, True])
def test_a_state_of_the_cpu_is_loaded_where_the_adapter_is(
    guard: bool, trained_for: Trained, stream: list[Tensor]
) -> None:
    """As float64 stands in for another device here: parameters keep their type, whatever a file has."""
    adapter = make(trained_for, "cotta", guard)
    adapter(stream[0])
    other = make(trained_for, "cotta", guard).to(torch.float64)
    other.load_state_dict(adapter.state_dict())
    assert all(p.dtype == torch.float64 for p in other.parameters())


@pytest.mark.parametrize("guard", [False, True])
def test_half_precision_is_refused(guard: bool, trained_for: Trained, stream: list[Tensor]) -> None:
    adapter = make(trained_for, "tent", guard)
    first = adapter(stream[0])
    for move in (
        adapter.half,
        adapter.bfloat16,
        lambda: adapter.to(torch.float16),
        lambda: adapter.to(stream[0].half()),
    ):
        with pytest.raises(InputError, match=r"keeps its weights in float32.*torch\.autocast"):
            move()
    adapter.reset()
    assert torch.equal(adapter(stream[0]), first)


@pytest.mark.parametrize("name", ["tent", "itta+", "bn_adapt"])
def test_modes_are_the_methods_own(name: str, trained_for: Trained, stream: list[Tensor]) -> None:
    one, other = make(trained_for, name), make(trained_for, name)
    modes = {k: m.training for k, m in one.model.named_modules()}
    assert torch.equal(one.train()(stream[0]), other.eval()(stream[0]))
    assert {k: m.training for k, m in one.model.named_modules()} == modes


@pytest.mark.parametrize("name", EVERY)
def test_a_copy_is_independent(name: str, trained_for: Trained, stream: list[Tensor]) -> None:
    adapter = make(trained_for, name)
    adapter(stream[0])
    copied = copy.deepcopy(adapter)
    expected = [adapter(x) for x in stream[1:3]]
    assert all(torch.equal(copied(x), e) for x, e in zip(stream[1:3], expected))


@pytest.mark.parametrize("guard", [False, True])
@pytest.mark.parametrize("name", ["t3a", "itta", "tent"])
def test_an_adapter_inside_a_module_of_the_users_own(
    name: str, guard: bool, trained_for: Trained, stream: list[Tensor]
) -> None:
    """The module saves and loads it as any other part, and still finds keys that are missing elsewhere."""

    def hold() -> nn.ModuleDict:
        return nn.ModuleDict({"adapter": make(trained_for, name, guard), "mine": nn.Linear(2, 2)})

    outer, other = hold(), hold()
    outer["adapter"](stream[0])
    state = outer.state_dict()
    assert set(state) == {"mine.weight", "mine.bias", *(f"adapter.{k}" for k in outer["adapter"].state_dict())}
    other.load_state_dict(state)
    assert torch.equal(other["adapter"](stream[1]), outer["adapter"](stream[1]))
    with pytest.raises(RuntimeError, match=r"Missing key.*mine\.weight"):
        other.load_state_dict({k: v for k, v in state.items() if k != "mine.weight"})


@pytest.mark.parametrize("guard", [False, True])
def test_images_far_outside_0_to_1_are_a_warning(guard: bool, trained_for: Trained, stream: list[Tensor]) -> None:
    adapter = adapt(trained_for("t3a"), "t3a", guard=guard)
    with pytest.warns(InputWarning, match="pixels from 0.* to 2.*: expected images between 0 and 1"):
        adapter(255 * stream[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert adapter(stream[0]).isfinite().all()
