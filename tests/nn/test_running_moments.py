"""Running moments equal the moments of all images at once, with less weight on older images."""

import pytest
import torch

from itta.errors import InputError
from itta.nn.running_moments import RunningMoments


@pytest.mark.parametrize("window", [1, 3, 100])
def test_moments_of_all_images_with_weights_that_fall_off(window: int) -> None:
    running = RunningMoments(3, window).double()
    torch.manual_seed(0)
    batches = [torch.randn(n, 3, dtype=torch.double) * (t + 1) + t for t, n in enumerate((4, 2, 5, 1, 3, 4))]
    shares: list[float] = []
    fourth = torch.zeros((), dtype=torch.double)
    for t, z in enumerate(batches, start=1):
        share = max(1 / t, 1 / window)
        shares = [s * (1 - share) for s in shares] + [share]
        weights = [s / len(b) for s, b in zip(shares, batches) for _ in b]
        rows = [row for b in batches[:t] for row in b]
        mean = sum(w * row for w, row in zip(weights, rows))
        covariance = sum(w * torch.outer(row - mean, row - mean) for w, row in zip(weights, rows))
        fourth = (1 - share) * fourth + share * sum(((row - mean) ** 2).sum() ** 2 for row in z) / len(z)
        running.update(z)
        got = running.moments()
        torch.testing.assert_close(tuple(got), (mean, covariance, fourth), rtol=1e-12, atol=1e-12)
    assert sum(shares) == pytest.approx(1)


def test_no_images_in_sight_and_a_wrong_window() -> None:
    assert RunningMoments(2, 5).moments().covariance.any() == 0
    with pytest.raises(InputError, match="must be at least 1 step, got 0"):
        RunningMoments(2, 0)
