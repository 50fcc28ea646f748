"""Every registered estimator on answers with known accuracy, and estimates of a trained model."""

from collections.abc import Callable

import pytest
import torch

import itta
from itta.adapters import adapt
from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.errors import InputError
from itta.estimators import ESTIMATORS, Witness, estimate_from
from itta.estimators.base import Evidence
from itta.estimators.stand_in_targets import make_stand_ins
from itta.models.stand_ins import StandIns
from tests.fixtures.networks import sequential_cnn

pytestmark = pytest.mark.slow

TINTS = ("warm", "cold")


def make_evidence(
    right: float, sure: float, n: int = 400, classes: int = 4, seed: int = 0
) -> tuple[Evidence, torch.Tensor]:
    """Answers of which a share is right, each with probability ``sure``; a second opinion that agrees when right."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=g)
    correct = torch.rand(n, generator=g) < right
    answers = torch.where(correct, labels, (labels + 1 + torch.randint(classes - 1, (n,), generator=g)) % classes)
    other = torch.where(correct, answers, torch.randint(classes, (n,), generator=g))
    rest = (1 - sure) / (classes - 1)

    def said(c: torch.Tensor) -> torch.Tensor:
        return torch.full((n, classes), rest).scatter_(1, c.unsqueeze(1), sure)

    evidence = Evidence(said(answers), other, {"restyled": said(other)}, torch.eye(classes))
    return evidence, labels


@pytest.fixture(scope="module")
def known() -> StandIns:
    """Stand-ins with accuracies from 25 to 95 %, whose model is ever less sure and agrees ever less."""
    from itta.estimators.statistics import table_row

    rows = []
    for i in range(30):
        right = 0.95 - 0.7 * i / 29
        evidence, labels = make_evidence(right, 0.3 + 0.6 * right, seed=i)
        rows.append({**table_row(evidence, labels, -0.8), "kind": float(i % 10)})
    return StandIns({name: torch.tensor([r[name] for r in rows]) for name in rows[0]}, -0.8)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_gives_a_share(name: str, known: StandIns) -> None:
    estimator = ESTIMATORS[name]()
    assert estimator.paper
    evidence, _ = make_evidence(0.7, 0.72)
    assert estimator.can_use(evidence, known)
    assert 0 <= estimator(evidence, known) <= 1
    certain = Evidence(torch.eye(4).repeat(20, 1), torch.arange(4).repeat(20), {}, None)
    assert estimator.can_use(certain, None) == (not estimator.needs_stand_ins and not estimator.needs_opinions)


@pytest.mark.parametrize("name", ["confidence", "difference", "combined"])
@pytest.mark.parametrize("right", [0.4, 0.7, 0.9])
def test_a_shift_like_the_stand_ins_is_estimated(name: str, right: float, known: StandIns) -> None:
    evidence, labels = make_evidence(right, 0.3 + 0.6 * right, seed=99)
    truth = float((evidence.answers == labels).float().mean())
    error = abs(ESTIMATORS[name]()(evidence, known) - truth)
    assert error < (0.06 if name == "combined" else 0.25)


def test_a_model_that_is_sure_and_wrong_is_seen_by_agreement(known: StandIns) -> None:
    """Confidence says 80 %; the answers to which no second opinion agrees say less."""
    evidence, labels = make_evidence(0.4, 0.8)
    truth = float((evidence.answers == labels).float().mean())
    found = estimate_from(evidence, known)
    assert found.combined is not None
    assert found.single["confidence"] == pytest.approx(0.8, abs=1e-3)
    assert abs(found.combined.before.value - truth) < abs(found.single["confidence"] - truth)


def test_without_stand_ins_only_single_estimates_are_given() -> None:
    found = estimate_from(make_evidence(0.7, 0.7)[0], None)
    assert found.combined is None
    assert set(found.single) == {"confidence", "agreement"}
    assert "Train the model again" in found.missing


@pytest.fixture
def model(trained: Callable[..., Algorithm], toy_batches: Callable[..., list[Batch]]) -> Algorithm:
    model = trained("erm", steps=20, lr=1e-2)
    itta.collect(model, dict(zip(TINTS, ([batch] for batch in toy_batches(7, 60)))))
    return model


def test_stand_ins_are_made_from_held_out_images(model: Algorithm) -> None:
    known = model.stand_ins
    assert known is not None
    assert len(known.accuracy) == 24
    assert known.of_clean("accuracy") == known.accuracy.max()  # damage does not help a model that is right
    assert float(known.accuracy.min()) < known.of_clean("accuracy") - 0.2
    used = {"diversity", "support of restyled", "support of neighbours", "believed gain", "referee gain"}
    assert used <= set(known.columns)


def test_too_few_images_make_no_stand_ins(model: Algorithm) -> None:
    assert make_stand_ins(model, {"warm": (torch.rand(10, 3, 16, 16), torch.zeros(10, dtype=torch.long))}) is None


def test_an_estimate_of_a_model_and_of_an_adapter(model: Algorithm, toy_batches: Callable[..., list[Batch]]) -> None:
    (x, y), _ = toy_batches(50, 96)
    found = itta.estimate(model, x)
    assert found.combined is not None
    assert found.images == 96
    truth = float((model(x).argmax(1) == y).float().mean())
    assert found.combined.before.low <= truth <= found.combined.before.high
    same = itta.estimate(adapt(model, "source"), x.split(20))
    assert same.combined is not None
    assert same.combined.before == same.combined.after
    with pytest.raises(InputError, match="at least one batch"):
        itta.estimate(model, [])


def test_the_accuracy_before_is_that_of_the_trained_model_whatever_the_adapter_changed(
    model: Algorithm, toy_batches: Callable[..., list[Batch]]
) -> None:
    (x, _), _ = toy_batches(52, 64)
    expected = itta.estimate(model, x)
    moved = adapt(model, "shot")
    moved(x)  # its copy of the network is another one now
    with pytest.raises(InputError, match="shot changes its copy of the network.*model=model"):
        itta.estimate(moved, x)
    for found in (itta.estimate(moved, x, model=model), itta.estimate(adapt(model, "shot", guard=True), x)):
        assert found.combined is not None
        assert found.combined.before == expected.combined.before  # type: ignore[union-attr]
    assert itta.estimate(adapt(model, "t3a"), x).single == expected.single


def test_any_network_gets_an_estimate() -> None:
    net = sequential_cnn().eval()
    found = itta.estimate(net, torch.rand(40, 3, 224, 224))
    assert found.combined is None
    assert "itta.collect" in found.missing
    with pytest.raises(InputError, match="wrap it with itta.wrap"):
        itta.collect(net, [torch.rand(4, 3, 16, 16)])


def test_a_witness_answers_as_the_adapter_and_asks_itta_plus_beside_others(
    model: Algorithm, toy_batches: Callable[..., list[Batch]]
) -> None:
    (x, _), _ = toy_batches(51, 32)
    for name in ("itta+", "t3a", "source"):
        witness = Witness(model, adapt(model, name))
        assert torch.equal(witness(x), adapt(model, name)(x))
        evidence = witness.evidence()
        assert torch.equal(evidence.answers, model(x).argmax(1))
        assert set(evidence.opinions) == (set() if name == "source" else {"restyled", "prototypes"})
        witness.reset()
        with pytest.raises(InputError, match="no answers"):
            witness.evidence()


def test_few_images_are_refused(known: StandIns) -> None:
    evidence, _ = make_evidence(0.5, 0.5)
    found = estimate_from(evidence.part(torch.arange(29)), known).combined
    assert found is not None
    assert "29 images are too few" in found.refused
    enough = estimate_from(evidence.part(torch.arange(30)), known).combined
    assert enough is not None
    assert "too few" not in enough.refused


def test_a_target_unlike_everything_is_refused(known: StandIns) -> None:
    evidence, _ = make_evidence(0.5, 0.5)
    strange = Evidence(
        torch.eye(4)[torch.zeros(400, dtype=torch.long)], evidence.after, evidence.opinions, evidence.confusions
    )
    found = estimate_from(strange, known).combined
    assert found is not None
    assert found.distance > 1
    near = estimate_from(evidence, known).combined
    assert near is not None
    assert found.before.high - found.before.low > near.before.high - near.before.low or found.refused


def test_a_witness_of_many_images_keeps_answers_evenly(trained: Callable[..., Algorithm]) -> None:
    """Of 1,000 images in batches of several sizes, at most 64 answers stay: those to every 16th image."""
    model = trained("erm")
    every, few = (Witness(model, adapt(model, "source"), most=most) for most in (None, 64))
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(1000, 3, generator=g)
    for part in logits.split([1, 63, 2, 130, 7, 300, 497]):
        for witness in (every, few):
            witness.note(part, part.flip(1), {"other": part})
    everything, kept = every.evidence(), few.evidence()
    assert len(everything) == 1000
    assert len(kept) == 63
    assert torch.equal(kept.before, everything.before[::16])
    assert torch.equal(kept.after, everything.after[::16])
    assert torch.equal(kept.opinions["other"], everything.opinions["other"][::16])
