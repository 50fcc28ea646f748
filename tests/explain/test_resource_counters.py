import pytest
import torch
from torch import nn

from itta.explain.resource_counters import count_flops, peak_memory


def test_a_backward_pass_counts_twice_the_forward_pass() -> None:
    linear, x = nn.Linear(5, 7, bias=False), torch.rand(3, 5, requires_grad=True)
    assert count_flops(lambda: linear(x)) == 3 * 5 * 7
    assert count_flops(lambda: linear(x).sum().backward()) == 3 * 3 * 5 * 7


def test_additions_alone_do_not_count() -> None:
    x = torch.rand(10)
    assert count_flops(lambda: (x + x).relu().sum()) == 0
    assert count_flops(lambda: torch.addcmul(x, x, x) * 2 / 3) == 30


def test_memory_is_what_was_alive_at_once() -> None:
    def run() -> None:
        first = torch.zeros(1000)
        del first
        kept = torch.zeros(500)
        torch.zeros(700)
        del kept

    assert peak_memory(run) == 4 * 1200
    outside = torch.zeros(10_000)
    assert peak_memory(lambda: outside[:100].clone()) == 4 * 100


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm2d(4), nn.BatchNorm2d(4).eval(), nn.GroupNorm(2, 4), nn.LayerNorm(6)], ids=repr
)
def test_a_normalisation_counts_its_entries(norm: nn.Module) -> None:
    x = torch.rand(2, 4, 6, 6, requires_grad=True)
    assert count_flops(lambda: norm(x)) == x.numel()
    assert count_flops(lambda: norm(x).sum().backward()) == 2 * x.numel()
