"""The learning rate is a share of the first one, however often it is set."""

import pytest
import torch

from itta.nn.learning_rate import learning_rate_factor, scale_learning_rate


def test_a_factor_counts_from_the_first_learning_rate() -> None:
    optimizer = torch.optim.Adam([torch.zeros(1, requires_grad=True)], lr=0.1)
    for factor in (0.5, 0.5, 0.0, 1.0):
        scale_learning_rate(optimizer, factor)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * factor)


def test_a_constant_stays_and_a_cosine_ends_at_zero() -> None:
    assert {learning_rate_factor("constant", step, 3) for step in range(4)} == {1.0}
    falling = [learning_rate_factor("cosine", step, 10) for step in range(11)]
    assert falling == sorted(falling, reverse=True)
    assert falling[-1] == pytest.approx(0.0)
