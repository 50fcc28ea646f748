"""Heat maps: Grad-CAM of any scalar, and the similarity of two maps.

Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization.
Selvaraju, Cogswell, Das, Vedantam, Parikh, Batra, ICCV 2017. https://arxiv.org/abs/1610.02391
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Sign = Literal["lowers", "raises", "both"]


def grad_cam(a: Tensor, g: Tensor) -> Tensor:
    """Σ_k α_k·A^k, where α_k is the mean of ∂L/∂A^k over the positions; activations and gradients [B, C, H, W] to
    maps [B, H, W].

    Eq. 1 and 2 without the ReLU, because a loss has two sides: where the map is negative, more activation lowers it.

    >>> grad_cam(torch.tensor([[[[1.0, 2.0]], [[3.0, 0.0]]]]), torch.tensor([[[[1.0, 3.0]], [[-1.0, -1.0]]]]))
    tensor([[[-1.,  4.]]])
    """
    return (g.mean((2, 3), keepdim=True) * a).sum(1)


def heat(maps: Tensor, sign: Sign) -> Tensor:
    """One side of the maps, or both, as values ≥ 0: ReLU(−map), ReLU(map) or |map|."""
    return maps.abs() if sign == "both" else F.relu(-maps if sign == "lowers" else maps)


def enlarge(maps: Tensor, size: int) -> Tensor:
    """Resize maps [B, H, W] to [B, size, size], bilinearly between the centres of the cells."""
    return F.interpolate(maps[:, None], size=(size, size), mode="bilinear", align_corners=False)[:, 0]


def hot_zone(heat: Tensor, share: float) -> Tensor:
    """The hottest pixels of each map: at least this share of them, but no pixel without heat; a mask [B, H, W].

    >>> hot_zone(torch.tensor([[[3.0, 1.0], [2.0, 0.0]], [[0.0, 0.0], [0.0, 1.0]]]), 0.5).int().tolist()
    [[[1, 0], [1, 0]], [[0, 0], [0, 1]]]
    """
    flat = heat.flatten(1)
    k = max(1, round(share * flat.shape[1]))
    least = flat.topk(k).values[:, -1:]
    return ((flat >= least) & (flat > 0)).view_as(heat)


def iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of each pair of zones, [B]; NaN if one of them is empty.

    >>> iou(torch.tensor([[[True, True, False]]]), torch.tensor([[[False, True, True]]]))
    tensor([0.3333])
    """
    a, b = a.flatten(1), b.flatten(1)
    shared = (a & b).sum(1) / (a | b).sum(1)
    return shared.masked_fill(~(a.any(1) & b.any(1)), torch.nan)


def spearman(a: Tensor, b: Tensor) -> Tensor:
    """Spearman's rank correlation of each pair of maps, [B]; NaN if one of them is constant.

    >>> spearman(torch.tensor([[[1.0, 2.0, 9.0]]]), torch.tensor([[[5.0, 7.0, 6.0]]]))
    tensor([0.5000], dtype=torch.float64)
    """
    x, y = (r - r.mean(1, keepdim=True) for r in (ranks(a.flatten(1)), ranks(b.flatten(1))))
    return (x * y).sum(1) / (x.square().sum(1) * y.square().sum(1)).sqrt()


def ranks(v: Tensor) -> Tensor:
    """Ranks from 1 within each row; equal values share their mean rank.

    >>> ranks(torch.tensor([[0.5, 0.1, 0.5]]))
    tensor([[2.5000, 1.0000, 2.5000]], dtype=torch.float64)
    """
    from scipy.stats import rankdata  # scipy's spearmanr takes one pair at a time, and warns if a map is constant

    return torch.from_numpy(rankdata(v.cpu().numpy(), axis=1)).to(v.device)
