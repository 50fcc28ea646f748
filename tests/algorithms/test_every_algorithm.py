"""Every registered method must run, learn, resume, and refuse wrong input."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from itta.algorithms import ALGORITHMS, Algorithm, Task, find_algorithm
from itta.algorithms.base import Batch
from itta.errors import InputError
from itta.nn.optimizer import load_optimizer_tensors, optimizer_tensors
from tests.fixtures.toy import mark_slow

Build = Callable[..., Algorithm]
Batches = Callable[..., list[Batch]]
# Settings, besides lr, with which a method learns the toy problem in a few steps
FAST: dict[str, dict[str, float]] = {
    "dann": {"lr_g": 3e-3, "lr_d": 3e-3, "lambda_": 0.1},
    "cdann": {"lr_g": 3e-3, "lr_d": 3e-3, "lambda_": 0.1},
    "mmd": {"mmd_gamma": 0.1},  # at 1, the features of so small a network collapse
}
STEPS = {"dann": 120, "cdann": 120}  # half of the steps train the discriminator
LEARN = mark_slow(ALGORITHMS, ALGORITHMS.keys() - {"erm", "itta"})
SINGLE = [n for n, a in ALGORITHMS.items() if a.needs.domains == 1]


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


@pytest.mark.parametrize("name", LEARN)
def test_learns(name: str, build: Build, toy_batches: Batches) -> None:
    """Test on new images of both domains. Chance is 1/3."""
    algorithm = build(name, lr=3e-3, **FAST.get(name, {}))
    steps(algorithm, toy_batches, 0, STEPS.get(name, 60))
    algorithm.eval()
    for x, y in toy_batches(10_000, n=60):
        accuracy = (algorithm.predict(x).argmax(1) == y).float().mean()
        assert accuracy > 0.9


@pytest.mark.slow
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
    assert torch.equal(algorithm.predict(x), algorithm.classify(algorithm.backbone(algorithm.inputs(x))))
    assert all(torch.equal(v, before[k]) for k, v in algorithm.state_dict().items())


@pytest.mark.parametrize("name", [n for n, a in ALGORITHMS.items() if a.needs.batch > 1])
def test_too_few_images(name: str, build: Build, toy_batches: Batches) -> None:
    algorithm = build(name)
    x, y = toy_batches(0)[0]
    few = ALGORITHMS[name].needs.batch - 1
    before = {k: v.clone() for k, v in algorithm.state_dict().items()}
    with pytest.raises(
        InputError, match=rf"{re.escape(name)} needs at least {few + 1} images per step, got {few}: raise"
    ):
        algorithm.update([(x[:few], y[:few])])
    assert all(torch.equal(v, before[k]) for k, v in algorithm.state_dict().items())


def one_source(toy: Task) -> Task:
    return replace(toy, domains=toy.domains[:1])


@pytest.mark.parametrize("name", mark_slow(ALGORITHMS, ALGORITHMS.keys() - {"erm", "coral"}))
def test_one_source_domain(name: str, build: Build, toy: Task, toy_batches: Batches) -> None:
    """Every method learns from a single domain, and its description says how."""
    algorithm = build(name, one_source(toy), lr=3e-3, **FAST.get(name, {}))
    assert algorithm.describe()["single_source"] == ("native" if algorithm.needs.single_source == "native" else "split")
    steps(algorithm, lambda step: toy_batches(step, n=16)[:1], 0, STEPS.get(name, 60))
    x, y = toy_batches(10_000, n=60)[0]
    assert (algorithm.eval().predict(x).argmax(1) == y).float().mean() > 0.9


@pytest.mark.parametrize("name", SINGLE)
def test_one_source_domain_as_it_is(name: str, build: Build, toy: Task, toy_batches: Batches) -> None:
    algorithm = build(name, one_source(toy), single_source="native")
    assert algorithm.n_domains == 1
    assert algorithm.describe()["single_source"] == "native"
    before = algorithm.head.weight.clone()
    steps(algorithm, lambda step: toy_batches(step)[:1], 0, 2)
    assert not torch.equal(algorithm.head.weight, before)


PENALISED = {"loss": 1, "nll": 1, "penalty": 0}


@pytest.mark.parametrize(
    ("name", "settings", "logs"),
    [
        ("cad", {}, {"loss": 1, "clf_loss": 1, "bn_loss": 0}),
        ("condcad", {}, {"loss": 1, "clf_loss": 1, "bn_loss": 0}),
        ("coral", {}, {"loss": 1, "penalty": 0}),
        ("fish", {"meta_lr": 1.0}, {"loss": 1}),
        ("fishr", {"penalty_anneal_iters": 0}, PENALISED),
        ("fishr", {"penalty_anneal_iters": 10}, PENALISED),
        ("groupdro", {}, {"loss": 1}),
        ("mixup", {}, {"loss": 1}),
        ("mmd", {}, {"loss": 1, "penalty": 0}),
        ("vrex", {"vrex_penalty_anneal_iters": 0}, PENALISED),
        ("vrex", {"vrex_penalty_anneal_iters": 10}, PENALISED),
    ],
)
def test_one_source_domain_as_it_is_is_erm(
    name: str, settings: dict[str, float], logs: dict[str, int], build: Build, toy: Task, toy_batches: Batches
) -> None:
    """Losses are compared relative to ERM's. Adam enlarges the rounding error of Mixup's λx + (1 − λ)x."""
    task, common = one_source(toy), {"lr": 1e-2, "weight_decay": 1e-2, "single_source": "native"}
    method, erm = build(name, task, **common, **settings).double(), build("erm", task, **common).double()
    tolerance = 1e-9 if name == "mixup" else 1e-12
    for step in range(3):
        x, y = toy_batches(step)[0]
        got, loss = method.update([(x.double(), y)]), erm.update([(x.double(), y)])["loss"]
        assert got == {key: pytest.approx(share * loss, rel=tolerance, abs=0) for key, share in logs.items()}
    for p, q in zip(method.parameters(), erm.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", sorted(ALGORITHMS.keys() - SINGLE))
def test_one_source_domain_is_refused_where_several_are_needed(name: str, build: Build, toy: Task) -> None:
    with pytest.raises(
        InputError, match=rf"{re.escape(name)} needs at least 2 source domains, got 1: set single_source=split"
    ):
        build(name, one_source(toy), single_source="native")


@pytest.mark.parametrize("name", [n for n, a in ALGORITHMS.items() if a.needs.single_source == "split"])
def test_pseudo_domains(name: str, build: Build, toy: Task, toy_batches: Batches) -> None:
    """There are three, of at least two images each, and each image of the batch is in one of them."""
    algorithm = build(name, one_source(toy))
    x, y = toy_batches(0)[0]
    parts = algorithm.per_domain([(x, y)])
    assert [len(part) for part, _ in parts] == [3, 3, 2]
    found = torch.cat([part for part, _ in parts])
    order = [int((x == image).flatten(1).all(1).nonzero()) for image in found]
    assert sorted(order) == list(range(8)) != order
    assert torch.equal(torch.cat([part for _, part in parts]), y[order])
    with pytest.raises(InputError, match="needs at least 6 images per domain and step, got 5: raise batch_size"):
        build(name, one_source(toy), batch_size=5)
    with pytest.raises(InputError, match="built for 2 source domains, got 1"):
        build(name).per_domain([(x, y)])


DEGENERATE: dict[str, Callable[[Batch], Batch]] = {
    "one image": lambda b: (b[0][:1], b[1][:1]),
    "one class": lambda b: (b[0], torch.zeros_like(b[1])),
    "equal images": lambda b: (b[0][:1].expand_as(b[0]).clone(), b[1]),
    "black images": lambda b: (torch.zeros_like(b[0]), b[1]),
}


@pytest.mark.parametrize("case", DEGENERATE)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_degenerate_batches(name: str, case: str, build: Build, toy_batches: Batches) -> None:
    """All numbers stay finite, or the batch is refused and nothing changes."""
    settings = {"grad_penalty": 1.0} if "dann" in name else {}
    settings |= {k: 0 for k in ALGORITHMS[name].Hparams.__dataclass_fields__ if k.endswith("penalty_anneal_iters")}
    algorithm = build(name, lr=1e-3, **settings)
    if case == "one image" and ALGORITHMS[name].needs.images > 1:
        with pytest.raises(InputError, match="images per domain and step, got 1: raise batch_size"):
            algorithm.update([DEGENERATE[case](b) for b in toy_batches(0)])
        with pytest.raises(InputError, match="images per domain and step, got 1: raise batch_size"):
            build(name, batch_size=1)
        return
    for step in range(4):
        torch.manual_seed(step)
        logs = algorithm.update([DEGENERATE[case](b) for b in toy_batches(step)])
        assert all(math.isfinite(v) for v in logs.values())
    assert all(torch.isfinite(t).all() for t in algorithm.state_dict().values())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_needs_are_true(name: str, build: Build, toy_batches: Batches) -> None:
    """A method has extra parameters, or predictions that depend on the batch, only if it declares them."""
    algorithm = build(name, lr=1e-3)
    extra = {k.split(".")[0] for k, _ in algorithm.named_parameters()} - {"backbone", "head"}
    always = [n for n in algorithm.needs.networks if " if " not in n]
    assert len(extra) == len(always), (extra, always)
    x, _ = toy_batches(0)[0]
    algorithm.eval()
    alone = torch.cat([algorithm.predict(image[None]) for image in x])
    assert torch.allclose(alone, algorithm.predict(x), atol=1e-5) is not algorithm.needs.batch_prediction


@pytest.mark.parametrize("name", ALGORITHMS)
def test_is_described(name: str, build: Build) -> None:
    algorithm = build(name, lr=1e-3)
    assert ALGORITHMS[name].name == name
    assert len(algorithm.paper) > 10
    assert algorithm.describe()["lr"] == 1e-3


def test_finding() -> None:
    assert find_algorithm("erm") is ALGORITHMS["erm"]
    assert find_algorithm("itta.algorithms.erm:ERM") is ALGORITHMS["erm"]
    assert find_algorithm("erm", file=Path("model.json")) is ALGORITHMS["erm"]
    with pytest.raises(InputError, match=r"unknown algorithm 'irmm'.*Choices: .*erm.*package\.module:Class"):
        find_algorithm("irmm")
    with pytest.raises(InputError, match=r"not a subclass of itta\.algorithms\.base\.Algorithm"):
        find_algorithm("itta.records:Record")
    with pytest.raises(InputError, match=r"model\.json names the algorithm.*--algorithm package\.module:Class"):
        find_algorithm("itta.algorithms.erm:ERM", file=Path("model.json"))
