"""Every registered adapter must not change the model, must reset exactly, continue elsewhere, and refuse bad input."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from itta.adapters import ADAPTERS, Adapter, find_adapter
from itta.adapters import adapt as adapt_as_told
from itta.adapters.gradient import GradientAdapter
from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.errors import InputError
from itta.nn.optimizer import optimizer_tensors
from tests.fixtures.toy import FEW_VIEWS, mark_slow

Trained = Callable[..., Algorithm]
Batches = Callable[..., list[Batch]]
ONE_BY_ONE = ("memo", "mt3", "ttt")  # learn from each image on its own, which takes long
EVERY = mark_slow(ADAPTERS, ONE_BY_ONE)
WITHOUT_GUARD = [pytest.param(n, False, marks=[pytest.mark.slow] if n in ONE_BY_ONE else []) for n in ADAPTERS]


@pytest.fixture
def stream(toy_batches: Batches) -> list[Tensor]:
    """Long enough for the methods that learn every 64 images."""
    return [toy_batches(200 + i, n=24)[1][0] for i in range(4)]


def adapt(trained: Algorithm, method: str | type[Adapter], guard: bool = False, **settings: Any) -> Adapter:
    """Make the method without its guard, which has its own tests, and with few views of an image."""
    few = FEW_VIEWS.get(method, {}) if isinstance(method, str) else {}
    return adapt_as_told(trained, method, guard=guard, **(few | settings))


def run(adapter: Adapter, stream: list[Tensor]) -> list[Tensor]:
    return [adapter(x).clone() for x in stream]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b))


def same_state(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(v, b[k]) for k, v in a.items())


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shapes(name: str, dtype: torch.dtype, trained_for: Trained, stream: list[Tensor]) -> None:
    adapter = adapt(trained_for(name).to(dtype), name)
    for x in (stream[0], stream[1][:5], stream[2][: ADAPTERS[name].needs.batch]):
        logits = adapter(x.to(dtype))
        assert logits.shape == (len(x), 3)
        assert logits.dtype == dtype
        assert torch.isfinite(logits).all()
        assert not logits.requires_grad


NO_NETWORK = ("t3a", "itta+")  # it predicts images one by one


@pytest.mark.parametrize("name", NO_NETWORK)
def test_what_no_single_network_answers_cannot_be_looked_into(name: str, trained_for: Trained) -> None:
    with pytest.raises(InputError, match="choose another adapter"):
        adapt(trained_for(name, steps=0), name).network()


@pytest.mark.parametrize(
    "name",
    mark_slow([n for n, a in ADAPTERS.items() if a.needs.changes != "nothing" and n not in NO_NETWORK], ONE_BY_ONE),
)
def test_the_network_to_look_into_is_the_one_that_predicts(
    name: str, trained_for: Trained, stream: list[Tensor]
) -> None:
    """After some batches; as the method has it, before or after its update on the next."""
    settings: dict[str, dict[str, Any]] = {
        "cotta": {"threshold": 0.0},  # no views
        "memo": {"episodic": False},
        "mt3": {"episodic": False},
        "roid": {"prior": False},  # which is the batch's
    }
    adapter = adapt(trained_for(name), name, **settings.get(name, {}))
    run(adapter, stream[:3])
    x = stream[3][:1] if name in ("memo", "mt3", "ttt") else stream[3]  # methods that learn image by image

    def look() -> Tensor:
        network = adapter.network()
        with torch.no_grad():
            return network.classify(network.backbone(network.inputs(x), adapter.adapt_block))

    before = look()
    logits = adapter(x)
    expected = before if ADAPTERS[name].predicts == "before" else look()
    torch.testing.assert_close(logits, expected)
    guarded = adapt(trained_for(name), name, guard=True, **settings.get(name, {}))
    assert guarded.network() is not guarded.model  # not the trained one, which the guard keeps for comparison


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("training", [True, False])
def test_the_trained_model_is_left_alone(name: str, training: bool, trained_for: Trained, stream: list[Tensor]) -> None:
    model = trained_for(name).train(training)
    tensors = {k: v.clone() for k, v in model.state_dict().items()}
    moments = {n: {k: v.clone() for k, v in optimizer_tensors(o).items()} for n, o in model.optimizers.items()}
    gradients = {k: None if p.grad is None else p.grad.clone() for k, p in model.named_parameters()}
    modes = {k: m.training for k, m in model.named_modules()}
    run(adapt(model, name), stream)
    assert same_state(model.state_dict(), tensors)
    assert {k: m.training for k, m in model.named_modules()} == modes
    assert list(model.optimizers) == list(moments)
    assert all(same_state(optimizer_tensors(o), moments[n]) for n, o in model.optimizers.items())
    for key, p in model.named_parameters():
        assert p.requires_grad
        assert (p.grad is None) == (gradients[key] is None)
        assert p.grad is None or torch.equal(p.grad, gradients[key])


@pytest.mark.parametrize("name", EVERY)
def test_reset_restores_exactly(name: str, trained_for: Trained, stream: list[Tensor]) -> None:
    adapter = adapt(trained_for(name), name)
    start = adapter.state_dict()
    first = run(adapter, stream)
    adapter.reset()
    assert same_state(adapter.state_dict(), start)
    assert equal(run(adapter, stream), first)


@pytest.mark.parametrize("name", EVERY)
def test_the_same_seed_gives_the_same_stream(name: str, trained_for: Trained, stream: list[Tensor]) -> None:
    model = trained_for(name)
    first = run(adapt(model, name), stream)
    torch.manual_seed(99)
    assert equal(run(adapt(model, name), stream), first)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("switch", [torch.no_grad, torch.inference_mode])
def test_a_caller_without_gradients(
    name: str, switch: Callable[[], Any], trained_for: Trained, stream: list[Tensor]
) -> None:
    model = trained_for(name)
    expected, adapter = run(adapt(model, name), stream), adapt(model, name)
    with switch():
        got = run(adapter, [x.clone() for x in stream])
    assert equal(got, expected)


@pytest.mark.parametrize(("name", "guard"), [("tent", True), ("itta+", True), *WITHOUT_GUARD])
def test_an_adapter_made_in_inference_mode(name: str, guard: bool, trained_for: Trained, stream: list[Tensor]) -> None:
    """It learns there and afterwards, after a reset and from a loaded state, and from a model that was made there."""
    model = trained_for(name)
    usual = adapt(model, name, guard=guard)
    first, state = run(usual, stream[:2]), usual.state_dict()
    rest = run(usual, stream[2:])
    with torch.inference_mode():
        adapter = adapt(copy.deepcopy(model), name, guard=guard)
        assert equal(run(adapter, stream[:2]), first)
    assert equal(run(adapter, stream[2:]), rest)
    with torch.inference_mode():
        adapter.reset()
    assert equal(run(adapter, stream[:2]), first)
    with torch.inference_mode():
        adapter.load_state_dict({k: v.clone() for k, v in state.items()})
    assert equal(run(adapter, stream[2:]), rest)


@pytest.mark.parametrize("name", EVERY)
def test_the_state_goes_on_elsewhere(name: str, trained_for: Trained, stream: list[Tensor]) -> None:
    model = trained_for(name)
    adapter, other = adapt(model, name), adapt(model, name)
    run(adapter, stream[:2])
    saved = adapter.state_dict()
    kept = {k: v.clone() for k, v in saved.items()}
    rest = run(adapter, stream[2:])
    assert same_state(saved, kept)  # state_dict returned copies
    other.load_state_dict(saved)
    assert equal(run(other, stream[2:]), rest)
    assert same_state(saved, kept)  # and load_state_dict made copies


BAD: dict[str, Callable[[Tensor], Tensor]] = {
    "NaN": lambda x: x.index_fill(0, torch.tensor([1]), float("nan")),
    "infinite": lambda x: x.index_fill(0, torch.tensor([1]), float("inf")),
    "grey": lambda x: x[:, :1],
    "one image": lambda x: x[0],
    "no image": lambda x: x[:0],
}


@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_refused_and_leaves_no_trace(
    name: str, bad: str, trained_for: Trained, stream: list[Tensor]
) -> None:
    adapter = adapt(trained_for(name), name)
    run(adapter, stream[:1])
    before = {k: v.clone() for k, v in adapter.state_dict().items()}
    expected = "image 1 of the batch has NaN" if bad in ("NaN", "infinite") else r"expected a batch of RGB images"
    with pytest.raises(InputError, match=expected):
        adapter(BAD[bad](stream[1]))
    assert same_state(adapter.state_dict(), before)


@pytest.mark.parametrize("name", ADAPTERS)
def test_is_described(name: str, trained_for: Trained) -> None:
    adapter = adapt(trained_for(name, steps=0), name)
    assert adapter.name == name
    assert len(adapter.paper) > 10
    assert adapter.predicts in ("before", "after")
    assert adapter.needs.changes
    assert isinstance(adapter.describe(), dict)


@pytest.mark.parametrize(
    "name", mark_slow([n for n, a in ADAPTERS.items() if issubclass(a, GradientAdapter)], ONE_BY_ONE)
)
def test_only_the_scope_moves(name: str, trained_for: Trained, stream: list[Tensor]) -> None:
    """Parameters in scope change. All others keep their bits, and get no gradient."""
    adapter = adapt(trained_for(name), name, lr=1e-2)
    before = {k: v.clone() for k, v in adapter.model.state_dict().items()}
    for x in stream:
        adapter(x)
    moved = {k for k, v in adapter.model.state_dict().items() if not torch.equal(v, before[k])}
    assert moved <= adapter.moving.keys()
    assert any(not torch.equal(p, adapter.start[k]) for k, p in adapter.moving.items())
    fixed = [p for k, p in adapter.model.named_parameters() if k not in adapter.moving]
    assert all(p.grad is None and not p.requires_grad for p in fixed)


@pytest.mark.parametrize("name", [n for n, a in ADAPTERS.items() if a.needs.batch_norm])
def test_without_batch_normalisation(name: str, trained: Trained) -> None:
    with pytest.raises(
        InputError, match=rf"{re.escape(name)} adapts batch normalisation, and this model's backbone has none"
    ):
        adapt(trained("erm", steps=0), name)


@pytest.mark.parametrize("name", [n for n, a in ADAPTERS.items() if a.needs.training])
def test_batch_normalisation_keeps_its_statistics(name: str, trained: Trained, stream: list[Tensor]) -> None:
    """A method with its own training uses the stored statistics at test time."""
    adapter = adapt(trained(ADAPTERS[name].needs.training, batch_norm=True).double(), name)
    before = {k: v.clone() for k, v in adapter.model.named_buffers()}
    assert any(k.endswith("running_mean") for k in before)
    assert adapter(stream[0][:4].double()).isfinite().all()
    assert same_state(dict(adapter.model.named_buffers()), before)


@pytest.mark.parametrize("name", [n for n, a in ADAPTERS.items() if a.needs.batch > 1])
def test_too_small_a_batch(name: str, trained_for: Trained, stream: list[Tensor]) -> None:
    adapter = adapt(trained_for(name), name)
    before = {k: v.clone() for k, v in adapter.state_dict().items()}
    least = adapter.needs.batch
    with pytest.raises(
        InputError, match=rf"{re.escape(name)} needs at least {least} images at a time, got {least - 1}"
    ):
        adapter(stream[0][: least - 1])
    assert same_state(adapter.state_dict(), before)


def test_source_is_the_model(trained: Trained, stream: list[Tensor]) -> None:
    model = trained(resnet_dropout=0.5)
    with torch.no_grad():
        expected = [model.predict(x) for x in stream]
    for found, answer in zip(run(adapt(model.train(), "source"), stream), expected):  # by a fast copy
        torch.testing.assert_close(found, answer, rtol=0, atol=1e-5)


def test_finding(trained: Trained) -> None:
    with pytest.raises(InputError, match=r"unknown adapter 'itt'.*Did you mean 'itta'"):
        find_adapter("itt")
    assert find_adapter("itta.adapters.tent:Tent") is ADAPTERS["tent"]
    with pytest.raises(InputError, match=r"not a subclass of itta\.adapters\.base\.Adapter"):
        find_adapter("itta.algorithms.erm:ERM")
    with pytest.raises(InputError, match=r"records\.jsonl names the adapter.*--adapter package\.module:Class"):
        find_adapter("itta.adapters.tent:Tent", file=Path("records.jsonl"))
    assert isinstance(adapt(trained(steps=0), "itta.adapters.source:Source"), ADAPTERS["source"])
    with pytest.raises(InputError, match=r"unknown hyper-parameter 'rate'.*Choices: .*lr"):
        adapt(trained(steps=0), "itta", rate=1)
    assert isinstance(adapt(trained(steps=0), ADAPTERS["itta"], steps=2), ADAPTERS["itta"])
