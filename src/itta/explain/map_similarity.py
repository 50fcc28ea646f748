"""The similarity of heat maps: which maps are compared, and the mean similarity over images."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from itta.explain.image_maps import Key, map_title
from itta.functional.heat_maps import Sign, heat, hot_zone, iou, spearman
from itta.metrics.accuracy import mean_and_error

OTHER = "main of another image"  # the similarity of maps that share nothing but the network


def map_pairs(maps: Mapping[Key, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """The pairs of maps to compare, by title: each loss with the main loss of the same network.

    Also the main loss after adaptation with the one before, and with that of another image.
    """
    before = maps["main", ""]
    pairs = {}
    for (loss, state), m in maps.items():
        if loss != "main":
            pairs[map_title(loss, state)] = (m, maps["main", state])
        elif state:
            pairs[f"main {state}, with main before"] = (m, before)
    if len(before) > 1:
        pairs[OTHER] = (before.roll(1, 0), before)
    return pairs


def pair_similarity(a: Tensor, b: Tensor, sign: Sign, hot: float) -> np.ndarray:
    """Rank correlation of the signed maps, IoU of the hot zones, and whether a map has no heat; [B, 3]."""
    zones = [hot_zone(heat(m, sign), hot) for m in (a, b)]
    empty = ~(zones[0].flatten(1).any(1) & zones[1].flatten(1).any(1))
    return torch.stack([spearman(a, b), iou(*zones).double(), empty.double()], 1).numpy()


def mean_similarity(rows: np.ndarray) -> dict[str, Any]:
    """Means and standard errors over the images for which the measure exists, and the share of images without heat."""
    result: dict[str, Any] = {}
    for name, values in zip(("spearman", "iou"), rows.T):
        there = values[np.isfinite(values)].tolist()
        mean, error = mean_and_error(there) if there else (None, None)
        result |= {name: mean, f"{name}_se": error, f"{name}_images": len(there)}
    return result | {"without_heat": float(rows[:, 2].mean())}
