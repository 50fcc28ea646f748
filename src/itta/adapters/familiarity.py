"""How much images look like the sources. Where they do, the trained model is at home, and only clear reasons count.

Our own. On images in the style of its sources, a model is right more often than what an adapter has learned from a
stream. So such images keep the trained model's class, unless another is far more probable.
"""

import numpy as np
import torch
from torch import Tensor, nn

from itta.adapters.diagnosis import fading_sums
from itta.adapters.target_style import flat_styles, variance_within
from itta.nn.style_mixing import EPS


class SourceStyles:
    """The styles of the sources, and D, the distance of an image's style s from the nearest of them.

    D = min_k mean_c (s_c − m_kc)²/v_c, with m_k the mean style of source k, and v the variance of the style within the
    sources. It is about 1 for images of the sources.
    """

    def __init__(self, styles: Tensor, domains: Tensor) -> None:
        """Take the styles of source images, [K, 2, C], and the number of the domain of each, [K]."""
        rows = flat_styles(styles)
        self.means = torch.stack([rows[domains == k].mean(0) for k in domains.unique()]).numpy()  # [sources, 2·C]
        self.within = variance_within(rows, domains).numpy().clip(min=1e-12)

    def distances(self, rows: np.ndarray) -> np.ndarray:
        """Return D of each image for `flat_styles` [B, 2·C]; [B]."""
        found: np.ndarray = ((rows[:, None] - self.means) ** 2 / self.within).mean(2).min(1)
        return found


class Familiarity:
    """g = max(h(D), h(D̄)), with h(D) = clip((far − D)/(far − near), 0, 1).

    D̄ is the mean of D over the images of the present domain so far. Older images fade, and it starts with ``start``
    images of distance 1.
    """

    def __init__(self, near: float, far: float, start: float, memory: int) -> None:
        self.near, self.far, self.start, self.kept = near, far, start, 1 - 1 / memory
        self.reset()

    def reset(self) -> None:
        self.sums = np.array([self.start, self.start])  # of the distances, and of the images

    def __call__(self, distances: np.ndarray, ordered: bool = True) -> Tensor:
        """Take in the distances of a batch; return g of each image, [B].

        If the order within the batch means nothing, D̄ is the mean after the batch for all of its images.
        """
        sums = fading_sums(self.sums, np.stack([distances, np.ones_like(distances)], 1), self.kept)
        self.sums = sums[-1].copy()
        if not ordered:
            sums = sums[-1:]
        return torch.from_numpy(np.maximum(self.share(distances), self.share(sums[:, 0] / sums[:, 1])))

    def share(self, distances: np.ndarray) -> np.ndarray:
        """Return h(D)."""
        found: np.ndarray = np.clip((self.far - distances) / (self.far - self.near), 0.0, 1.0)
        return found

    @property
    def distance(self) -> float:
        """Return D̄, after the latest image."""
        return float(self.sums[0] / self.sums[1])

    def state_dict(self) -> dict[str, Tensor]:
        return {"sums": torch.from_numpy(self.sums.copy())}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.sums = state["sums"].numpy().copy()


class FrozenFamiliarity(nn.Module):
    """The familiarity of images as it is now: the output of a block, [B, C, …], to g, [B, 1]. D̄ no longer changes."""

    def __init__(self, sources: SourceStyles, familiar: Familiarity) -> None:
        super().__init__()
        self.near, self.far = familiar.near, familiar.far
        self.least = float(familiar.share(np.array(familiar.distance)))
        self.means: Tensor
        self.within: Tensor
        self.register_buffer("means", torch.from_numpy(sources.means))
        self.register_buffer("within", torch.from_numpy(sources.within))

    def forward(self, z: Tensor) -> Tensor:
        positions = (2, 3) if z.ndim == 4 else (1,)
        rows = torch.cat([z.mean(positions), (z.var(positions) + EPS).log() / 2], 1)
        distances = ((rows.unsqueeze(1) - self.means) ** 2 / self.within).mean(2).amin(1, keepdim=True)
        return ((self.far - distances) / (self.far - self.near)).clamp(0.0, 1.0).clamp(min=self.least)
