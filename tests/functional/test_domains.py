"""Numbers for each domain against loops over domains and images."""

from collections.abc import Sequence

import pytest
import torch

from itta.functional.domains import domain_labels, domain_means, domain_risks

SIZES = [(4,), (3, 3, 3), (1, 5, 2)]


@pytest.mark.parametrize("sizes", SIZES)
def test_means(sizes: Sequence[int]) -> None:
    values = torch.randn(sum(sizes), dtype=torch.double, generator=torch.Generator().manual_seed(0))
    expected = [sum(values[sum(sizes[:e]) :][:n].tolist()) / n for e, n in enumerate(sizes)]
    assert domain_means(values, sizes).tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("sizes", SIZES)
def test_risks(sizes: Sequence[int]) -> None:
    """Compare the value, and the gradient of a sum that weighs each domain differently."""
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(sum(sizes), 3, dtype=torch.double, generator=g, requires_grad=True)
    y, domain = torch.randint(3, (sum(sizes),), generator=g), [e for e, n in enumerate(sizes) for _ in range(n)]
    risks = domain_risks(logits, y, sizes)
    expected = [torch.zeros(()) for _ in sizes]
    for row, label, e in zip(logits, y, domain):
        expected[e] = expected[e] + (row.exp().sum().log() - row[label]) / sizes[e]
    torch.testing.assert_close(risks, torch.stack(expected), rtol=1e-12, atol=1e-12)
    weight = torch.arange(1.0, len(sizes) + 1, dtype=torch.double)
    got, naive = (torch.autograd.grad((weight * r).sum(), logits)[0] for r in (risks, torch.stack(expected)))
    torch.testing.assert_close(got, naive, rtol=1e-12, atol=1e-12)


def test_risks_of_certain_and_wrong_predictions() -> None:
    """The exponential of 1000 overflows; the risk does not."""
    logits, y = torch.tensor([[1000.0, 0.0], [1000.0, 0.0]]), torch.tensor([0, 1])
    assert domain_risks(logits, y, [1, 1]).tolist() == [0.0, 1000.0]


@pytest.mark.parametrize("sizes", SIZES)
def test_labels(sizes: Sequence[int]) -> None:
    labels = domain_labels(sizes, torch.device("cpu"))
    assert labels.dtype == torch.long
    assert labels.tolist() == [e for e, n in enumerate(sizes) for _ in range(n)]
