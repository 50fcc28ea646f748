"""Priors from confusions, and calibrated temperatures, against what they were made from."""

import pytest
import torch

from itta.functional.priors import calibrated_temperature, mean_answers, prior_from_confusions


@pytest.mark.parametrize("classes", [2, 7, 300])
def test_the_prior_that_made_the_mean_answer_is_found(classes: int) -> None:
    generator = torch.Generator().manual_seed(classes)
    confusions = (torch.eye(classes) * 6 + torch.randn(classes, classes, generator=generator)).softmax(1)
    prior = torch.rand(classes, generator=generator).softmax(0)
    found = prior_from_confusions(confusions, (prior @ confusions).unsqueeze(0), pull=0.0, iterations=2000)
    torch.testing.assert_close(found[0], prior, rtol=0, atol=2e-3)


def test_the_pull_goes_towards_equal_classes() -> None:
    mean = torch.tensor([[0.9, 0.1]])
    found = [float(prior_from_confusions(torch.eye(2), mean, pull)[0, 0]) for pull in (0.0, 0.2, 1.0, 100.0)]
    assert found[0] == pytest.approx(0.9)
    assert found == sorted(found, reverse=True)
    assert found[-1] == pytest.approx(0.5, abs=0.01)


def test_each_row_is_found_on_its_own() -> None:
    confusions = torch.tensor([[0.7, 0.3], [0.2, 0.8]])
    means = torch.tensor([[0.5, 0.5], [0.3, 0.7]])
    both = prior_from_confusions(confusions, means)
    alone = torch.cat([prior_from_confusions(confusions, mean.unsqueeze(0)) for mean in means])
    torch.testing.assert_close(both, alone)


def test_mean_answers_equal_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(30, 4, generator=generator), torch.randint(3, (30,), generator=generator)
    found = mean_answers(logits, labels, smoothing=2.0)
    for y in range(4):
        rows = [p for p, label in zip(logits.softmax(1), labels) if label == y]
        expected = (sum(rows, torch.zeros(4)) + 2 * torch.eye(4)[y]) / (len(rows) + 2)
        torch.testing.assert_close(found[y], expected)
    assert torch.equal(found[3], torch.eye(4)[3])  # a class without images


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_the_temperature_that_made_the_labels_is_found(temperature: float) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(20_000, 3, generator=generator)
    labels = torch.multinomial((logits / temperature).softmax(1), 1, generator=generator)[:, 0]
    assert calibrated_temperature(logits, labels) == pytest.approx(temperature, rel=0.05)


@pytest.mark.parametrize(("classes", "dtype"), [(2, torch.float32), (7, torch.float64), (300, torch.float32)])
def test_the_iteration_equals_the_same_one_in_torch(classes: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(classes)
    confusions = torch.randn(classes, classes, generator=generator, dtype=dtype).mul(3).softmax(1)
    means = torch.randn(5, classes, generator=generator, dtype=dtype).softmax(1)
    usual = torch.rand(classes, generator=generator, dtype=dtype)
    usual[0] = 0.0  # a class that no source has
    usual /= usual.sum()
    expected = usual.double().expand_as(means)
    for _ in range(20):
        explained = (expected @ confusions.double()).clamp(min=1e-9)
        expected = expected * ((means.double() / explained) @ confusions.double().T)
        expected = (expected / expected.sum(1, keepdim=True) + 0.3 * usual.double()) / 1.3
    found = prior_from_confusions(confusions, means, 0.3, usual)
    torch.testing.assert_close(found, expected.to(dtype))
