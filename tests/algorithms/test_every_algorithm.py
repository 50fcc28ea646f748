"""Whatever is registered must run, learn, resume and refuse alike."""

from collections.abc import Callable

import pytest
import torch

from itta.algorithms import ALGORITHMS, Algorithm, find_algorithm
from itta.algorithms.base import Batch
from itta.errors import InputError
from itta.nn.optimizer import load_optimizer_tensors, optimizer_tensors

Build = Callable[..., Algorithm]
Batches = Callable[..., list[Batch]]


def steps(algorithm: Algorithm, batches: Batches, start: int, stop: int) -> None:
    like = next(algorithm.parameters())
    for step in range(start, stop):
        torch.manual_seed(step)
        algorithm.update([(x.to(like), y) for x, y in batches(step)])


def same(a: Algorithm, b: Algorithm) -> bool:
    return all(torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_runs(name: str, dtype: torch.dtype, build: Build, toy_batches: Batches) -> None:
    algorithm = build(name, lr=1e-3).to(dtype)
    before = {k: p.clone() for k, p in algorithm.named_parameters()}
    x, y = toy_batches(0)[0]
    torch.manual_seed(0)
    logs = algorithm.update([(x.to(dtype), y), (x.flip(0).to(dtype), y.flip(0))])
    assert logs
    assert all(isinstance(v, float) and v == v for v in logs.values())
    assert all(not torch.equal(p, before[k]) for k, p in algorithm.named_parameters() if k.startswith("head"))
    logits = algorithm.eval().predict(x.to(dtype))
    assert logits.shape == (len(x), 3)
    assert logits.dtype == dtype
    assert torch.equal(logits, algorithm(x.to(dtype)))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_learns(name: str, build: Build, toy_batches: Batches) -> None:
    """Chance is 1/3; new images of both domains."""
    algorithm = build(name, lr=3e-3)
    steps(algorithm, toy_batches, 0, 60)
    algorithm.eval()
    for x, y in toy_batches(10_000, n=60):
        accuracy = (algorithm.predict(x).argmax(1) == y).float().mean()
        assert accuracy > 0.9


@pytest.mark.parametrize("name", ALGORITHMS)
def test_is_deterministic(name: str, build: Build, toy_batches: Batches) -> None:
    first, second = build(name, lr=1e-3), build(name, lr=1e-3)
    assert same(first, second)
    for algorithm in (first, second):
        steps(algorithm, toy_batches, 0, 3)
    assert same(first, second)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_resumes_bit_for_bit(name: str, build: Build, toy_batches: Batches) -> None:
    whole, again = build(name, lr=1e-3), build(name, lr=1e-3)
    steps(whole, toy_batches, 0, 3)
    model = {k: v.clone() for k, v in whole.state_dict().items()}
    moments = {k: {n: t.clone() for n, t in optimizer_tensors(o).items()} for k, o in whole.optimizers.items()}
    steps(whole, toy_batches, 3, 6)

    again.load_state_dict(model)
    for key, optimizer in again.optimizers.items():
        load_optimizer_tensors(optimizer, moments[key])
    assert not same(whole, again)
    steps(again, toy_batches, 3, 6)
    assert same(whole, again)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_predicting_changes_nothing(name: str, build: Build, toy_batches: Batches) -> None:
    algorithm = build(name, resnet_dropout=0.5).eval()
    before, (x, _) = {k: v.clone() for k, v in algorithm.state_dict().items()}, toy_batches(0)[0]
    assert torch.equal(algorithm.predict(x), algorithm.predict(x))
    assert torch.equal(algorithm.predict(x), algorithm.head(algorithm.backbone(x)))
    assert all(torch.equal(v, before[k]) for k, v in algorithm.state_dict().items())


@pytest.mark.parametrize("name", [n for n, a in ALGORITHMS.items() if a.min_batch > 1])
def test_too_few_images(name: str, build: Build, toy_batches: Batches) -> None:
    algorithm = build(name)
    x, y = toy_batches(0)[0]
    few = ALGORITHMS[name].min_batch - 1
    before = {k: v.clone() for k, v in algorithm.state_dict().items()}
    with pytest.raises(InputError, match=rf"{name} needs at least {few + 1} images a step, got {few}: raise"):
        algorithm.update([(x[:few], y[:few])])
    assert all(torch.equal(v, before[k]) for k, v in algorithm.state_dict().items())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_is_described(name: str, build: Build) -> None:
    algorithm = build(name, lr=1e-3)
    assert ALGORITHMS[name].name == name
    assert len(algorithm.paper) > 10
    assert algorithm.describe()["lr"] == 1e-3


def test_finding() -> None:
    assert find_algorithm("erm") is ALGORITHMS["erm"]
    assert find_algorithm("itta.algorithms.erm:ERM") is ALGORITHMS["erm"]
    with pytest.raises(InputError, match=r"unknown algorithm 'irmm'.*Choices: .*erm"):
        find_algorithm("irmm")
    with pytest.raises(InputError, match=r"package\.module:Class"):
        find_algorithm("no.such.module:Thing")
    with pytest.raises(InputError, match=r"package\.module:Class"):
        find_algorithm("itta.algorithms.erm:Nothing")
    with pytest.raises(InputError, match="not a subclass"):
        find_algorithm("itta.records:Record")
