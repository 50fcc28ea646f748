"""A sharpened answer has the entropy that was asked for, from wherever the search starts."""

import pytest
import torch

from itta.functional.entropy import entropy
from itta.functional.sharpening import sharpen


@pytest.mark.parametrize("start", [0.1, 1.0, 300.0])
@pytest.mark.parametrize("share", [0.05, 0.4, 0.95])
@pytest.mark.parametrize("classes", [2, 12, 300])
def test_the_entropy_is_met(start: float, share: float, classes: int) -> None:
    scores = torch.rand(50, classes, generator=torch.Generator().manual_seed(classes), dtype=torch.double)
    wanted = share * float(torch.tensor(classes).double().log())
    k = sharpen(scores, wanted, start, iterations=100)
    assert float(entropy(k * scores).mean()) == pytest.approx(wanted, rel=1e-2)


def test_equal_scores_cannot_be_sharpened() -> None:
    """The search ends all the same."""
    assert 0 < sharpen(torch.ones(3, 4), wanted=0.1) < float("inf")
