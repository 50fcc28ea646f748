"""Every method trains on one device: no operation mixes devices, and the host waits at most once in a step."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from itta.algorithms import ALGORITHMS, Algorithm, Task
from itta.algorithms.base import Batch
from tests.fixtures.device_walk import PRETENDED, MixedDevices, pretended_device
from tests.fixtures.toy import TinyBN

pytestmark = pytest.mark.slow

Build = Callable[..., Algorithm]
Batches = Callable[..., list[Batch]]
# Settings that lead through other lines than the defaults do
OTHERWISE: dict[str, list[dict[str, Any]]] = {
    "arm": [{"reference": True}],
    "cad": [{"is_flipped": False, "is_project": True}, {"reference": True, "is_flipped": False}],
    "cdann": [{"reference": True, "grad_penalty": 1.0}],
    "consistency": [{"view": "noise"}],
    "dann": [{"grad_penalty": 1.0, "mlp_dropout": 0.5}],
    "fish": [{"fish_shuffle": True}],
    "fishr": [{"penalty_anneal_iters": 1}],
    "irm": [{"irm_penalty_anneal_iters": 1}],
    "itta": [{"update_order": "paper", "align_every": 2}, {"align_blocks": "last", "resnet_dropout": 0.5}],
    "metareg": [{"metareg_steps": 1}],
    "mldg": [{"mldg_pairs": "ring", "weight_decay": 1e-3}],
    "mmd": [{"reference": True}],
    "mt3": [{"mt3_first_order": True}],
    "mtl": [{"reference": True}],
    "selfreg": [{"selfreg_variant": "features"}],
    "ttt": [{"ttt_rotation": "expand"}],
    "vrex": [{"vrex_penalty_anneal_iters": 1}],
}
CASES = [(name, {}) for name in ALGORITHMS] + [(name, s) for name, several in OTHERWISE.items() for s in several]


def on_device(batches: Sequence[Batch]) -> list[Batch]:
    return [(x.to(PRETENDED), y.to(PRETENDED)) for x, y in batches]


def train(algorithm: Algorithm, batches: Callable[[int], list[Batch]]) -> list[dict[str, float]]:
    logs = []
    for step in range(2):
        torch.manual_seed(step)
        logs.append(algorithm.update(batches(step)))
    return logs


@pytest.mark.filterwarnings("ignore:for .*copying from a non-meta parameter")  # here "meta" holds values
@pytest.mark.parametrize(("name", "settings"), CASES)
def test_a_step_stays_on_its_device_and_waits_once(
    name: str, settings: dict[str, Any], build: Build, toy_batches: Batches
) -> None:
    expected = train(build(name, **settings), toy_batches)
    with pretended_device() as watch:
        algorithm = build(name, **settings).to(PRETENDED)
        assert all(p.device == PRETENDED for p in algorithm.parameters())
        moved = [on_device(toy_batches(step)) for step in range(2)]
        for step in range(2):
            torch.manual_seed(step)
            watch.forget()
            logs = algorithm.update(moved[step])
            assert watch.waits.total() <= 1, watch.waits
            assert not watch.blocking_uploads or (name, step) == ("metareg", 1)  # it loads new weights, once
            assert logs == pytest.approx(expected[step], rel=1e-3, abs=1e-5)  # of the same step on the host


@pytest.mark.parametrize("name", ["erm", "itta", "fish", "ttt++"])
def test_live_batch_normalisation_stays_on_its_device(name: str, build: Build, toy: Task, toy_batches: Batches) -> None:
    with pretended_device() as watch:
        algorithm = build(name, replace(toy, make_backbone=TinyBN)).to(PRETENDED)
        batches = on_device(toy_batches(0))
        watch.forget()
        algorithm.update(batches)
        assert watch.waits.total() == 1


@pytest.mark.parametrize("name", ["coral", "mixup", "itta"])
def test_a_single_domain_stays_on_its_device(name: str, build: Build, toy: Task, toy_batches: Batches) -> None:
    with pretended_device() as watch:
        algorithm = build(name, replace(toy, domains=toy.domains[:1])).to(PRETENDED)
        batches = on_device(toy_batches(0)[:1])
        watch.forget()
        algorithm.update(batches)
        assert watch.waits.total() == 1


def careless_weights(algorithm: Algorithm, x: Tensor, y: Tensor) -> Tensor:
    return (algorithm.predict(x)[:, 0] * torch.ones(len(x))).mean()  # ones on the host


def careless_index(algorithm: Algorithm, x: Tensor, y: Tensor) -> Tensor:
    return algorithm.predict(x[torch.arange(len(x))]).mean()  # an index on the host


@pytest.mark.parametrize("careless", [careless_weights, careless_index])
def test_mixed_devices_are_seen(careless: Callable[..., Tensor], build: Build, toy_batches: Batches) -> None:
    with pretended_device():
        algorithm = build("erm").to(PRETENDED)
        x, y = on_device(toy_batches(0))[0]
        with pytest.raises(MixedDevices, match="two devices"):
            careless(algorithm, x, y)


def read_item(x: Tensor) -> object:
    return x.mean().item()


def branch_on_value(x: Tensor) -> object:
    return 1 if x.mean() > 0 else 0


def select_by_mask(x: Tensor) -> object:
    return x[x > 0.5]


def to_numpy(x: Tensor) -> object:
    return x.cpu().numpy()


@pytest.mark.parametrize("reading", [read_item, branch_on_value, select_by_mask, to_numpy])
def test_each_wait_is_counted(reading: Callable[[Tensor], object]) -> None:
    with pretended_device() as watch:
        x = torch.rand(8).to(PRETENDED)
        watch.forget()
        reading(x)
        reading(x)
        assert watch.waits.total() == 2


def test_what_needs_no_waiting_is_not_counted() -> None:
    with pretended_device() as watch:
        x = torch.rand(8).to(PRETENDED)
        watch.forget()
        ((x * 2).relu().sum() / len(x)).square()
        float(torch.rand(()))  # a value on the host
        assert not watch.waits


def test_the_watch_ends_with_its_block() -> None:
    with pretended_device():
        pass
    assert type(torch.zeros(2).to(PRETENDED)) is Tensor
