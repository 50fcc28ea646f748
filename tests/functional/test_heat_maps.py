import math

import pytest
import torch
from torch import Tensor

from itta.functional.heat_maps import enlarge, grad_cam, heat, hot_zone, iou, ranks, spearman


def naive_ranks(values: list[float]) -> list[float]:
    return [sum(w < v for w in values) + (sum(w == v for w in values) + 1) / 2 for v in values]


def naive_spearman(a: list[float], b: list[float]) -> float:
    x, y = naive_ranks(a), naive_ranks(b)
    mean = (len(a) + 1) / 2
    covariance = sum((p - mean) * (q - mean) for p, q in zip(x, y))
    return covariance / math.sqrt(sum((p - mean) ** 2 for p in x) * sum((q - mean) ** 2 for q in y))


@pytest.fixture
def maps() -> Tensor:
    """With many ties, as enlarged maps have them."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-3, 4, (6, 5, 4), generator=generator).double()


def test_formula() -> None:
    torch.manual_seed(0)
    a, g = torch.randn(2, 3, 4, 5, dtype=torch.float64), torch.randn(2, 3, 4, 5, dtype=torch.float64)
    for b in range(2):
        expected = sum((g[b, k].sum() / 20) * a[b, k] for k in range(3))
        torch.testing.assert_close(grad_cam(a, g)[b], expected)


def test_rank_correlation_with_ties(maps: Tensor) -> None:
    a, b = maps[:3], maps[3:]
    for i, found in enumerate(spearman(a, b).tolist()):
        assert found == pytest.approx(naive_spearman(a[i].flatten().tolist(), b[i].flatten().tolist()))
    assert ranks(maps.flatten(1))[0].tolist() == naive_ranks(maps[0].flatten().tolist())


def test_rank_correlation_reads_the_order_only(maps: Tensor) -> None:
    torch.testing.assert_close(spearman(maps, maps**3), torch.ones(6, dtype=torch.float64))
    torch.testing.assert_close(spearman(maps, -2 * maps + 1), -torch.ones(6, dtype=torch.float64))


def test_a_map_without_order_has_no_correlation(maps: Tensor) -> None:
    assert spearman(maps, torch.zeros_like(maps)).isnan().all()


def test_the_sides_of_a_map(maps: Tensor) -> None:
    assert torch.equal(heat(maps, "raises") - heat(maps, "lowers"), maps)
    assert torch.equal(heat(maps, "raises") + heat(maps, "lowers"), heat(maps, "both"))


def test_hot_zones_hold_their_share_and_no_cold_pixel() -> None:
    torch.manual_seed(0)
    values = torch.rand(3, 10, 10) + 0.1
    assert hot_zone(values, 0.2).flatten(1).sum(1).tolist() == [20, 20, 20]
    values[1, 1:] = 0  # ten pixels with heat
    values[2] = 0
    assert hot_zone(values, 0.2).flatten(1).sum(1).tolist() == [20, 10, 0]


def test_iou_counts() -> None:
    torch.manual_seed(0)
    a, b = torch.rand(4, 6, 6) > 0.5, torch.rand(4, 6, 6) > 0.7
    a[3] = False
    for found, x, y in zip(iou(a, b).tolist()[:3], a.flatten(1).tolist(), b.flatten(1).tolist()):
        both = sum(p and q for p, q in zip(x, y))
        assert found == pytest.approx(both / sum(p or q for p, q in zip(x, y)))
    assert iou(a, b)[3].isnan()
    assert iou(a[:1], a[:1]).item() == 1


def test_enlarging_keeps_places() -> None:
    small = torch.zeros(1, 2, 2)
    small[0, 0, 1] = 1
    large = enlarge(small, 8)
    assert large.shape == (1, 8, 8)
    assert large[0, 0, 7] == 1
    assert large[0, 7, 0] == 0
