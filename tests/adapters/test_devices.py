"""Every adapter works on one device: no operation mixes devices, and the host waits at most once for a batch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from itta.adapters import ADAPTERS, Adapter, adapt
from itta.adapters.itta_plus import ITTAPlus
from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from tests.fixtures.device_walk import PRETENDED, pretended_device
from tests.fixtures.toy import FEW_VIEWS, mark_slow

pytestmark = pytest.mark.slow

Trained = Callable[..., Algorithm]
Batches = Callable[..., list[Batch]]
NEVER = ("source", "tent", "bn_adapt", "lame", "memo", "mt3", "shot", "t3a", "ttt", "ttt++", "itta")  # wait
GUARD = 1  # a guard fetches the answers to judge them
OTHERWISE: dict[str, list[dict[str, Any]]] = {  # settings that lead through other lines than the defaults do
    "bn_adapt": [{"mode": "ema"}],
    "cotta": [{"threshold": 0.0, "loss": "symmetric"}],
    "itta": [{"objective": "plain", "per": "channel", "anchor": 0.1}, {"objective": "entropy", "scope": "head"}],
    "lame": [{"affinity": "rbf"}, {"affinity": "linear"}],
    "note": [{"every": 16, "memory": 8}],
    "rotta": [{"every": 16, "memory": 8}],
    "t3a": [{"supports": -1}],
    "ttt++": [{"queue": 16}],
}
CASES = [(name, {}) for name in ADAPTERS] + [(name, s) for name, several in OTHERWISE.items() for s in several]


def make(trained: Algorithm, name: str, guard: bool, settings: dict[str, Any]) -> Adapter:
    return adapt(trained, name, guard=guard, **(FEW_VIEWS.get(name, {}) | settings))


ONE_BY_ONE = ("memo", "mt3", "ttt")  # learn from each image by itself, which takes long


@pytest.fixture
def stream(toy_batches: Batches, request: pytest.FixtureRequest) -> list[Tensor]:
    few = hasattr(request.node, "callspec") and request.node.callspec.params["name"] in ONE_BY_ONE
    return [toy_batches(200 + i, n=3 if few else 16)[1][0] for i in range(2)]


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_a_batch_stays_on_its_device_and_waits_once(
    name: str, settings: dict[str, Any], trained_for: Trained, stream: list[Tensor]
) -> None:
    plain = make(trained_for(name), name, False, settings)
    expected = [plain(x) for x in stream]
    trained = trained_for(name)
    with pretended_device() as watch:
        adapter = make(trained.to(PRETENDED), name, False, settings)
        for x, logits in zip(stream, expected):
            watch.forget()
            found = adapter(x)
            assert watch.waits.total() <= (name not in NEVER), watch.waits
            assert not watch.blocking_uploads
            assert found.device == PRETENDED
            torch.testing.assert_close(found.cpu(), logits, rtol=1e-3, atol=1e-4)  # as on the host


@pytest.mark.parametrize("name", mark_slow(ADAPTERS, ADAPTERS.keys() - {"tent", "itta", "itta+"}))
def test_a_guard_waits_once_unless_the_adapter_has(name: str, trained_for: Trained, stream: list[Tensor]) -> None:
    trained = trained_for(name)
    with pretended_device() as watch:
        adapter = make(trained.to(PRETENDED), name, True, {})
        for x in stream:
            watch.forget()
            adapter(x)
            own = name not in NEVER and name != "itta+"  # itta+ hands over the values that it has fetched
            assert watch.waits.total() <= own + GUARD, watch.waits


def test_only_a_new_domain_costs_a_second_wait(trained_for: Trained, toy_batches: Batches) -> None:
    old, new = (torch.cat([toy_batches(seed, n=16)[0][0] for seed in range(s, s + 4)]) for s in (10, 30))
    stream = torch.cat([old, 1 - 0.2 * new]).split(16)
    plain = make(trained_for("itta+"), "itta+", False, {})
    expected = [plain(x) for x in stream]
    trained, waits = trained_for("itta+"), []
    with pretended_device() as watch:
        adapter = make(trained.to(PRETENDED), "itta+", False, {})
        for x, logits in zip(stream, expected):
            watch.forget()
            torch.testing.assert_close(adapter(x).cpu(), logits, rtol=1e-3, atol=1e-4)
            waits.append(watch.waits.total() - 1)  # without that of the line above
    assert isinstance(adapter, ITTAPlus)
    assert adapter.diagnosis()["new domains"] == [64]
    assert waits == [1, 1, 1, 1, 2, 1, 1, 1]


def test_no_confident_image_changes_nothing(trained_for: Trained, stream: list[Tensor]) -> None:
    """The host does not know that no image is confident, so it runs the second pass; no step follows."""
    trained = trained_for("sar")
    with pretended_device():
        adapter = make(trained.to(PRETENDED), "sar", False, {"margin": 1e-9})
        before = {name: value.cpu() for name, value in adapter.state().items()}
        adapter(stream[0])
        after = {name: value.cpu() for name, value in adapter.state().items()}
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("name", ["tent", "note", "t3a", "itta+"])
def test_an_adapter_that_moves_later_goes_on_as_it_was(name: str, trained_for: Trained, stream: list[Tensor]) -> None:
    stays, moves = (make(trained_for(name), name, False, {}) for _ in range(2))
    for adapter in (stays, moves):
        adapter(stream[0])
    with pretended_device() as watch:
        moves.to(PRETENDED)
        watch.forget()
        found = moves(stream[1])
        assert watch.waits.total() <= 1
        torch.testing.assert_close(found.cpu(), stays(stream[1]), rtol=1e-3, atol=1e-4)


def test_images_on_the_device_are_checked_there(trained_for: Trained, stream: list[Tensor]) -> None:
    """The check of images that are on the device already costs one wait."""
    trained = trained_for("tent")
    with pretended_device() as watch:
        adapter = make(trained.to(PRETENDED), "tent", False, {})
        x = stream[0].to(PRETENDED)
        watch.forget()
        adapter(x)
        assert watch.waits.total() == 1


@pytest.mark.parametrize("name", mark_slow(ADAPTERS, (*ONE_BY_ONE, "cotta")))
def test_bf16_answers_nearly_as_float32(name: str, trained_for: Trained, toy_batches: Batches) -> None:
    batches = [toy_batches(300 + i, n=16)[1] for i in range(3)]
    accuracy = {}
    for precision in ("float32", "bf16"):
        trained = trained_for(name)
        trained.backbone.precision = precision  # type: ignore[assignment]
        adapter = make(trained, name, False, {})
        assert adapter.model.backbone.precision == precision
        answers = [adapter(x) for x, _ in batches]
        assert all(logits.dtype == torch.float32 and torch.isfinite(logits).all() for logits in answers)
        right = [(logits.argmax(1) == y).float().mean() for logits, (_, y) in zip(answers, batches)]
        accuracy[precision] = float(torch.stack(right).mean())
    assert accuracy["bf16"] == pytest.approx(accuracy["float32"], abs=0.07)  # 3 of 48 images
    assert accuracy["bf16"] > 0.6
