"""CAD and CondCAD against their formulas: sums of exponentials, image by image."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.algorithms.cad import relative_products
from itta.functional.transfers import fetch_numbers

NAMES = ("cad", "condcad")
FLAGS = {"is_flipped": True, "is_normalized": False, "is_project": False, "reference": False, "temperature": 0.1}


def share(
    i: int, similar: Tensor, y: list[int], domain: list[int], conditional: bool, flags: dict[str, Any]
) -> Tensor | None:
    """Return the share of the chosen images in image i's sum of e^s_ij.

    Return None if one of the sums is empty, or if no other image has i's label.
    """
    partners = [j for j in range(len(y)) if j != i and y[j] == y[i]]
    others = partners if conditional else [j for j in range(len(y)) if j != i]
    chosen = [j for j in others if (domain[j] != domain[i]) == flags["is_flipped"]]
    itself = flags["reference"] and not flags["is_flipped"] and not conditional  # with e^0
    if not (partners and others and (chosen or itself)):
        return None
    return (similar[chosen].sum() + (1 if itself else 0)) / similar[others].sum()


def bottleneck(u: Tensor, y: list[int], domain: list[int], conditional: bool, flags: dict[str, Any]) -> Tensor:
    if flags["is_normalized"]:
        u = torch.stack([row / row.square().sum().sqrt() for row in u])
    scale = 1 if flags["reference"] else sum(row.square().sum() for row in u) / len(u)
    temperature = flags["temperature"]
    shares = [share(i, (u @ u[i] / scale / temperature).exp(), y, domain, conditional, flags) for i in range(len(y))]
    valid = [p for p in shares if p is not None]
    if not valid:
        return torch.zeros((), dtype=torch.double)
    sign = -1 if flags["is_flipped"] else 1
    return sum(sign * temperature / 0.07 * p.log() for p in valid) / len(valid)


@pytest.fixture
def check(
    assert_matches_naive: Callable[..., Any], naive_adam: Any, cross_entropy: Any
) -> Callable[..., SimpleNamespace]:
    """(name, sizes, flags): compare three updates of CAD or CondCAD with their formula."""

    def run(name: str, sizes: tuple[int, ...], **given: Any) -> SimpleNamespace:
        flags = FLAGS | given

        def naive(model: Algorithm, batches: list[Batch], state: SimpleNamespace) -> dict[str, float]:
            if not hasattr(state, "adam"):
                state.adam, state.bottlenecks = naive_adam(1e-2, 1e-2), []
            domain = [e for e, (_, y) in enumerate(batches) for _ in y]
            z = torch.cat([model.backbone(x) for x, _ in batches])
            y = torch.cat([y for _, y in batches])
            risk = cross_entropy(model.head(z), y)
            u = model.project(z) if flags["is_project"] else z
            b = bottleneck(u, y.tolist(), domain, name == "condcad", flags)
            state.bottlenecks.append(b.item())
            loss = risk + 0.3 * b
            parameters = list(model.parameters())
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
            moved = [(p, g) for p, g in zip(parameters, gradients) if g is not None]
            state.adam.step([p for p, _ in moved], [g for _, g in moved])
            return {"loss": loss.item(), "clf_loss": risk.item(), "bn_loss": b.item()}

        return assert_matches_naive(name, naive, sizes=sizes, lmbda=0.3, **flags)

    return run


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("flipped", "reference"), [(True, False), (True, True), (False, False), (False, True)])
@pytest.mark.parametrize("sizes", [(6, 5, 4), (2, 1, 1)])
def test_three_updates(name: str, flipped: bool, reference: bool, sizes: tuple[int, ...], check: Any) -> None:
    """The smaller batches contain images without a partner."""
    done = check(name, sizes, is_flipped=flipped, reference=reference)
    assert any(done.state.bottlenecks)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("flipped", "normalized", "project"), [(True, True, False), (False, False, True), (True, True, True)]
)
def test_what_is_compared(name: str, flipped: bool, normalized: bool, project: bool, check: Any) -> None:
    flags = {"is_flipped": flipped, "is_normalized": normalized, "is_project": project, "temperature": 0.05}
    done = check(name, (6, 5, 4), **flags)
    if project:
        shapes = [tuple(p.shape) for p in done.algorithm.project.parameters()]
        assert shapes == [(16, 16), (16,), (128, 16), (128,)]
        for p, q in zip(done.algorithm.project.parameters(), done.model.project.parameters()):
            torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_one_domain_cut_in_three(name: str, check: Any) -> None:
    assert all(check(name, (10,)).state.bottlenecks)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("flipped", [True, False])
@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("case", ["one image each", "one class", "all classes differ", "equal images"])
def test_degenerate_batches(
    name: str,
    flipped: bool,
    normalized: bool,
    case: str,
    build: Callable[..., Algorithm],
    toy_batches: Callable[..., list[Batch]],
) -> None:
    algorithm = build(name, is_flipped=flipped, is_normalized=normalized)
    (x, y), (x_other, y_other) = toy_batches(0, n=3)
    batches = {
        "one image each": [(x[:1], y[:1]), (x_other[:1], y[:1])],
        "one class": [(x, torch.zeros_like(y)), (x_other, torch.zeros_like(y))],
        "all classes differ": [(x[:2], torch.tensor([0, 1])), (x_other[:1], torch.tensor([2]))],
        "equal images": [(x[:1].expand(3, -1, -1, -1), y), (x[:1].expand(3, -1, -1, -1), y_other)],
    }[case]
    for _ in range(2):
        logs = algorithm.update(batches)
        assert all(math.isfinite(v) for v in logs.values())
        if case in ("one image each", "all classes differ"):
            assert logs["bn_loss"] == 0
    assert all(p.isfinite().all() for p in algorithm.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_large_similarities(name: str, build: Callable[..., Algorithm]) -> None:
    """The exponentials would overflow. The logarithm of their sum is near the largest similarity."""
    algorithm = build(name, temperature=0.05)
    g = torch.Generator().manual_seed(0)
    z = torch.randn(8, 5, generator=g, dtype=torch.double)
    s = (1e5 * z @ z.T).requires_grad_()
    y, domain = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1]), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    expected = []
    for i in range(8):
        others = [j for j in range(8) if j != i and (name == "cad" or y[j] == y[i])]
        across = [j for j in others if domain[j] != domain[i]]
        expected.append(max(s[i, j].item() for j in others) - max(s[i, j].item() for j in across))
    got = algorithm.bottleneck(s, y, domain)
    assert got.item() == pytest.approx(0.05 / 0.07 * sum(expected) / 8, rel=1e-9)
    (gradient,) = torch.autograd.grad(got, s)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_longer_features_weigh_no_more(
    name: str, build: Callable[..., Algorithm], toy_batches: Callable[..., list[Batch]]
) -> None:
    """Features a thousand times as long do not change the bottleneck; in DomainBed's form they multiply it."""

    def bottleneck(factor: float, reference: bool) -> float:
        algorithm = build(name, reference=reference)
        features = algorithm.features
        algorithm.features = lambda x: factor * features(x)  # type: ignore[method-assign]
        return fetch_numbers(algorithm.objective(toy_batches(0, n=8))[1])["bn_loss"]

    assert bottleneck(1000.0, False) == pytest.approx(bottleneck(1.0, False), rel=1e-4)
    assert bottleneck(1000.0, True) > 100 * bottleneck(1.0, True)


def test_features_of_no_length_compare_as_equal() -> None:
    u = torch.zeros(3, 4, requires_grad=True)
    s = relative_products(u)
    assert not s.any()
    (gradient,) = torch.autograd.grad(s.sum(), u)
    assert not gradient.any()
