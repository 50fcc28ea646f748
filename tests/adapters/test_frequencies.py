"""Class frequencies that the user knows: how they are written, and what the diagnosis makes of them."""

from collections.abc import Callable
from copy import deepcopy

import numpy as np
import pytest
import torch

from itta.adapters import adapt
from itta.adapters.diagnosis import Diagnosis, Rules
from itta.adapters.frequencies import ESTIMATE_COUNTS_AS, UNKNOWN, Frequencies, read_frequencies
from itta.adapters.itta_plus import ITTAPlus
from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.errors import InputError
from itta.models.source_statistics import collect_confusions

Trained = Callable[..., Algorithm]
Batches = Callable[..., list[Batch]]
ANIMALS = ("cat", "dog", "hen")


@pytest.mark.parametrize(
    ("given", "counted", "estimate"),
    [
        (("cat:31", "hen:12"), [31, 0, 12], ESTIMATE_COUNTS_AS),
        (("cat:0.5", "dog:0.3", "hen:0.2"), [0.5, 0.3, 0.2], 0),
        (("hen:0.9",), [0.05, 0.05, 0.9], 0),
        (("cat:0.4995", "dog:0.3", "hen:0.2"), [0.49975, 0.30015, 0.2001], 0),
    ],
)
def test_whole_numbers_are_counts_and_others_are_shares(
    given: tuple[str, ...], counted: list[float], estimate: float
) -> None:
    found = read_frequencies(given, ANIMALS)
    np.testing.assert_allclose(found.counted, counted, atol=1e-5)
    assert found.estimate == estimate


def test_a_share_of_zero_leaves_the_class_possible() -> None:
    shares = read_frequencies(("cat:0.0", "dog:0.4", "hen:0.6"), ANIMALS).counted
    assert 0 < shares[0] < 1e-3
    assert shares.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("cow:3",), r"unknown class in frequencies .* 'cow'.*Choices: cat, dog, hen"),
        (("cat",), "unknown class in frequencies .* 'cat'"),
        (("cat:3", "cat:4"), "name the class 'cat' twice"),
        (("cat:many",), "frequency of 'cat' must be a number of at least 0, got 'many'"),
        (("cat:-1",), "must be a number of at least 0, got '-1'"),
        (("cat:nan",), "must be a number of at least 0, got 'nan'"),
        (("cat:inf",), "must be a number of at least 0, got 'inf'"),
        (("cat:0", "dog:0"), "count no image"),
        (("cat:0.9", "dog:0.4"), "add up to 1.3, not to 1"),
        (("cat:0.3", "dog:0.3", "hen:0.3"), "add up to 0.9, not to 1"),
    ],
)
def test_what_is_no_frequency_is_refused(given: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_frequencies(given, ANIMALS)


def test_names_may_hold_colons() -> None:
    assert read_frequencies(("a:b:2",), ("a:b", "c")).counted.tolist() == [2, 0]


def test_nothing_known_changes_no_bit_of_the_estimate() -> None:
    prior = torch.rand(5, 4, dtype=torch.double).numpy()
    assert UNKNOWN.with_estimate(prior) is prior
    np.testing.assert_array_equal(deepcopy(UNKNOWN).with_estimate(prior), prior)


def biased_answers(labels: torch.Tensor, seed: int) -> torch.Tensor:
    """Answers that prefer the first class, log-probabilities [N, 3]."""
    noise = torch.randn(len(labels), 3, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    push = torch.tensor([1.5, 0.0, 0.0], dtype=torch.double)
    return (1.5 * torch.eye(3, dtype=torch.double)[labels] + noise + push).log_softmax(1)


def test_known_shares_are_bayes_rule() -> None:
    """Naive: log p + log π − log Mᵀu − log(ḡ/Mᵀπ), with ḡ over the images so far and 16 that π lets expect."""
    labels = torch.randint(3, (40,), generator=torch.Generator().manual_seed(0))
    log_p, pi = biased_answers(labels, 1), np.array([0.2, 0.7, 0.1])
    m = np.array([[0.8, 0.1, 0.1], [0.3, 0.6, 0.1], [0.3, 0.1, 0.6]])
    rules = Rules(neighbours=False, memory=10**9)
    diagnosis = Diagnosis(3, rules, {"mean": torch.from_numpy(m)}, Frequencies(pi, 0.0))
    found = diagnosis(log_p).corrected.exp().numpy()
    for t in range(len(labels)):
        seen = log_p[: t + 1].exp().numpy()
        mean = (seen.sum(0) + 16 * pi @ m) / (t + 1 + 16)
        naive = np.exp(log_p[t].numpy()) * pi / (np.full(3, 1 / 3) @ m) / (mean / (pi @ m))
        np.testing.assert_allclose(found[t], naive / naive.sum(), rtol=1e-5)


def test_counted_images_tell_a_bias_from_frequent_classes() -> None:
    """Nothing in the answers to these two streams differs; the counted images do."""
    rare = torch.tensor([0.15, 0.7, 0.15]).multinomial(900, True, generator=torch.Generator().manual_seed(2))
    log_p = biased_answers(rare, 3)
    right = {}
    for name, given in (("estimated", ()), ("counted", ("a:7", "b:36", "c:7"))):
        diagnosis = Diagnosis(3, Rules(), None, read_frequencies(given, ("a", "b", "c")))
        right[name] = float((diagnosis(log_p).corrected.argmax(1) == rare).double().mean())
    assert right["counted"] > right["estimated"] + 0.05


def test_itta_plus_takes_a_dictionary_or_the_text_of_a_command(trained: Trained, toy_batches: Batches) -> None:
    model = trained("erm", steps=20, lr=1e-2)
    model.confusions = collect_confusions(model, toy_batches(300, n=30))
    first, second = model.classes[:2]
    x = toy_batches(400, n=40)[0][0]
    answers = []
    for given in ({first: 30, second: 5}, f"{first}:30,{second}:5", ()):
        adapter = adapt(model, "itta+", frequencies=given, guard=False)
        assert isinstance(adapter, ITTAPlus)
        answers.append(adapter(x))
        frozen = adapter.frozen()(x[:4])
        assert frozen.shape == (4, model.n_classes)
    assert torch.equal(answers[0], answers[1])
    assert not torch.equal(answers[0], answers[2])
    assert answers[0].exp().mean(0)[0] > answers[2].exp().mean(0)[0]  # the first class is frequent
