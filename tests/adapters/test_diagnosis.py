"""The diagnosis of a stream against its equations written out, and on streams that are what they are."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from itta.adapters.diagnosis import LEAK, NOISE, ROWS, Diagnosis, Rules, fading_sums
from itta.functional.priors import prior_from_confusions


def answers(labels: Tensor, classes: int = 4, sure: float = 1.5, seed: int = 0) -> Tensor:
    """Log-probabilities of a model that is often, and not always, right."""
    noise = torch.randn(len(labels), classes, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    return (noise + sure * torch.eye(classes, dtype=torch.double)[labels]).log_softmax(1)


def labels_of(kind: str, n: int = 400, classes: int = 4) -> Tensor:
    if kind == "sorted":
        return torch.arange(classes).repeat_interleave(n // classes // 2).repeat(2)
    generator = torch.Generator().manual_seed(3)
    weights = torch.ones(classes) if kind == "iid" else torch.arange(1, classes + 1).float() ** -2
    return torch.multinomial(weights, n, replacement=True, generator=generator)


def naive(
    log_p: Tensor, rules: Rules, confusions: Tensor, shares: Tensor, far: Tensor | None
) -> tuple[Tensor, list[float], list[float]]:
    """One image after another; everything that is remembered is kept as lists."""
    n, classes = log_p.shape
    p, fading = log_p.exp(), 1 - 1 / rules.memory
    chains = [[1 / classes] * classes for _ in rules.stays]
    evidence = [0.0 for _ in rules.stays]
    deltas: list[float] = []
    alikes: list[float] = []
    chances: list[float] = []
    total = [0.0] * classes
    start, distance = rules.start, 0.0
    usual = shares if rules.usual == "sources" else shares.sqrt() if rules.usual == "between" else torch.ones(classes)
    usual = usual / usual.sum()
    expected = [sum(float(usual[y] * confusions[y, c]) for y in range(classes)) for c in range(classes)]
    found, rhos, kappas = [], [], []
    for t in range(n):
        if t > 0:
            alikes.append(sum(float(p[t - 1, c] * p[t, c]) for c in range(classes)))
            chances.append(sum(total[c] / sum(total) * float(p[t, c]) for c in range(classes)))
            deltas.append(alikes[-1] - chances[-1])
        total, start = [fading * total[c] + float(p[t, c]) for c in range(classes)], fading * start
        g = [(v + start * e) / (sum(total) + start) for v, e in zip(total, expected)]
        kappa, rho = 0.0, 1.0
        if deltas:
            w = [fading ** (len(deltas) - 1 - i) for i in range(len(deltas))]
            effective = sum(w) ** 2 / sum(v**2 for v in w)
            mean = sum(a * b for a, b in zip(w, deltas)) / sum(w)
            variance = sum(a * b**2 for a, b in zip(w, deltas)) / sum(w) - mean**2 + NOISE
            z = mean / (math.sqrt(variance / effective) * (1 + 4 / effective))
            kappa = min(max((z - rules.low) / (rules.high - rules.low), 0.0), 1.0) if rules.neighbours else 0.0
            rho = sum(a * b for a, b in zip(w, alikes)) / sum(a * b for a, b in zip(w, chances))
        distance = math.inf if far is None else fading * distance + float(far[t])
        pull = min(rules.pull, rules.rise * distance / (sum(total) + start))
        prior = prior_from_confusions(confusions, torch.tensor([g]), pull, usual)[0].tolist()
        explained = [sum(prior[y] * float(confusions[y, c]) for y in range(classes)) for c in range(classes)]
        bayes = [prior[c] * explained[c] / expected[c] for c in range(classes)]
        b = [g[c] ** (1 - rules.correction) * bayes[c] ** rules.correction for c in range(classes)]
        b = [v / sum(b) for v in b]
        ratio = [float(p[t, c]) / g[c] for c in range(classes)]
        weights = torch.tensor(evidence, dtype=torch.double).softmax(0).tolist()
        voted = [0.0] * classes
        for k, s in enumerate(rules.stays):
            predicted = [s * chains[k][c] + (1 - s) * b[c] for c in range(classes)]
            voted = [voted[c] + weights[k] * predicted[c] for c in range(classes)]
            joint = [predicted[c] * ratio[c] / max(ratio) for c in range(classes)]
            evidence[k] = fading * evidence[k] + math.log(sum(joint))
            chains[k] = [(1 - LEAK) * v / sum(joint) + LEAK / classes for v in joint]
        score = [ratio[c] * (kappa * voted[c] + (1 - kappa) * b[c]) for c in range(classes)]
        found.append([v / sum(score) for v in score])
        rhos.append(rho)
        kappas.append(kappa)
    return torch.tensor(found, dtype=torch.double), rhos, kappas


@pytest.mark.parametrize("with_distances", [False, True])
@pytest.mark.parametrize("kind", ["iid", "sorted"])
@pytest.mark.parametrize(
    "rules",
    [
        Rules(memory=50, low=1.0, high=4.0),
        Rules(correction=0.5, pull=0.5, stays=(0.9,), start=4.0, memory=30),
        Rules(neighbours=False, correction=0.0, usual="sources"),
        Rules(usual="equal"),
        Rules(usual="between", start=40.0),
    ],
    ids=str,
)
def test_it_equals_the_equations_written_out(kind: str, rules: Rules, with_distances: bool) -> None:
    log_p = answers(labels_of(kind, 80))
    far = torch.rand(80, generator=torch.Generator().manual_seed(1)) / 4 if with_distances else None
    confusions = answers(torch.arange(4), seed=9).exp().float()
    shares = torch.tensor([0.4, 0.3, 0.2, 0.1])
    expected, rhos, kappas = naive(log_p, rules, confusions, shares, far)
    judged = Diagnosis(4, rules, {"mean": confusions, "prior": shares})(log_p, far)
    torch.testing.assert_close(judged.posterior.exp(), expected, rtol=0, atol=1e-5)  # the prior is in single precision
    assert judged.rho.tolist() == pytest.approx(rhos)
    assert judged.kappa.tolist() == pytest.approx(kappas, abs=1e-9)
    if kind == "sorted":
        assert (max(kappas) > 0.2) == rules.neighbours


@pytest.mark.parametrize("size", [1, 7, 80])
def test_batches_of_any_size_give_the_same(size: int) -> None:
    log_p = answers(labels_of("sorted", 80))
    whole = Diagnosis(4, Rules())(log_p).posterior
    diagnosis = Diagnosis(4, Rules())
    torch.testing.assert_close(torch.cat([diagnosis(part).posterior for part in log_p.split(size)]), whole)


@pytest.mark.parametrize("classes", [2, 4, 300])
def test_sorted_streams_are_told_from_random_ones(classes: int) -> None:
    kappas, gains = {}, {}
    for kind in ("iid", "sorted", "zipf"):
        labels = labels_of(kind, 600, classes)
        log_p = answers(labels, classes, sure=2.0 + math.log(classes) / 2)
        judged = Diagnosis(classes, Rules())(log_p)
        right = [(of.argmax(1) == labels).double().mean().item() for of in (log_p, judged.posterior)]
        kappas[kind], gains[kind] = float(judged.kappa[-1]), right[1] - right[0]
    assert kappas["iid"] == kappas["zipf"] == 0.0
    assert gains["iid"] > -0.02
    if classes < 300:  # there, runs are of one image
        assert kappas["sorted"] == 1.0
        assert gains["sorted"] > 0.01


def test_what_a_model_answers_too_often_is_held_back() -> None:
    """Half of what it gives to the first class belongs to others, and its confusions on the sources say so."""
    labels = labels_of("iid", 600)
    push = torch.tensor([1.5, 0.0, 0.0, 0.0], dtype=torch.double)
    held_out = labels_of("iid", 2000)
    pushed = (answers(held_out, seed=5) + push).log_softmax(1)
    confusions = torch.stack([pushed[held_out == y].exp().mean(0) for y in range(4)])
    log_p = (answers(labels) + push).log_softmax(1)
    judged = Diagnosis(4, Rules(), {"mean": confusions})(log_p)
    before, after = ((of.argmax(1) == labels).double().mean() for of in (log_p, judged.corrected))
    assert after > before + 0.03


def test_frequent_classes_are_preferred_near_the_sources() -> None:
    """Two thirds of the images show the first class. Near the sources, the model's confusions explain its answers."""
    labels, held_out = labels_of("zipf", 600), labels_of("iid", 2000)
    known = answers(held_out, sure=2.0, seed=5)
    confusions = torch.stack([known[held_out == y].exp().mean(0) for y in range(4)])
    log_p = answers(labels, sure=2.0)
    right, frequent = {}, {}
    for distance in (0.0, 1.0):
        judged = Diagnosis(4, Rules(), {"mean": confusions})(log_p, torch.full((600,), distance))
        right[distance] = float((judged.corrected.argmax(1) == labels).double().mean())
        frequent[distance] = int((judged.corrected.argmax(1) == labels.bincount().argmax()).sum())
    assert right[0.0] > float((log_p.argmax(1) == labels).double().mean()) + 0.02
    assert frequent[0.0] > frequent[1.0]


def test_batches_whose_inner_order_means_nothing() -> None:
    """The order within a batch changes nothing, and batches of few classes are still told from mixed ones."""
    labels = labels_of("sorted", 800)
    log_p, rules = answers(labels), Rules(ordered=False)
    one, other = Diagnosis(4, rules), Diagnosis(4, rules)
    generator = torch.Generator().manual_seed(0)
    for part in log_p.split(16):
        order = torch.randperm(len(part), generator=generator)
        torch.testing.assert_close(one(part).posterior[order], other(part[order]).posterior)
    assert one.kappa == pytest.approx(other.kappa)
    assert one.kappa > 0.5
    mixed = Diagnosis(4, rules)
    for part in answers(labels_of("iid", 800)).split(16):
        mixed(part)
    assert mixed.kappa == 0.0


def test_it_forgets() -> None:
    """A stream that is sorted at first and random later is random in the end."""
    diagnosis = Diagnosis(4, Rules(memory=100))
    assert float(diagnosis(answers(labels_of("sorted"))).kappa[-1]) > 0.9
    assert float(diagnosis(answers(labels_of("iid", 800), seed=2)).kappa[-1]) == 0.0


def test_without_distances_the_whole_pull_counts_whatever_its_rise() -> None:
    p = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)).log_softmax(1)
    found = [Diagnosis(3, Rules(rise=rise))(p).posterior for rise in (0.0, 10.0)]
    assert torch.isfinite(found[0]).all()
    assert torch.equal(*found)


@pytest.mark.parametrize("rows", [1, 5, ROWS, 2 * ROWS + 3])
def test_fading_sums_are_those_of_one_row_after_another(rows: int) -> None:
    drawn = np.random.RandomState(rows)
    before, new = drawn.rand(3), drawn.rand(rows, 3)
    total, expected = before, []
    for row in new:
        total = 0.97 * total + row
        expected.append(total)
    np.testing.assert_allclose(fading_sums(before, new, 0.97), expected, rtol=1e-12)
