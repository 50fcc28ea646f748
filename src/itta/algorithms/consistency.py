"""MixStyle with plain consistency: ITTA without its learnable loss ("Ours w/o f_w" in the paper's tables).

Improved Test-Time Adaptation for Domain Generalization. Chen, Zhang, Song, Shan, Liu, CVPR 2023.
https://arxiv.org/abs/2304.04494
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from itta.algorithms import base
from itta.algorithms.base import Algorithm, Batch, Logs, Needs
from itta.errors import InputError
from itta.hparams import hp, power
from itta.nn.style_mixing import draw_mix
from itta.nn.views import ViewDraw, draw_noise, two_views


@dataclass(frozen=True)
class Hparams(base.Hparams):
    alpha: float = hp(1.0, "weight of the consistency loss, Eq. 2")
    view: Literal["mixstyle", "noise"] = hp(
        "mixstyle", "how the second view is made: by MixStyle, or by noise on the features"
    )
    mix_alpha: float = hp(0.1, "α of Beta(α, α), which draws the share of an image's own style")
    sfa_sigma: float = hp(0.5, "deviation of the feature noise, for view=noise", power(10, -1.5, 0))


class Consistency(Algorithm):
    """min CE(f_φ(z), y) + CE(f_φ(z'), y) + α·mean((z − z')²), where z' is z with mixed styles.

    Styles are mixed after one of the first two blocks, drawn at each step.
    """

    name = "consistency"
    paper = "Chen et al., Improved Test-Time Adaptation for Domain Generalization, CVPR 2023 (without f_w)"
    Hparams = Hparams
    needs = Needs(batch=2)

    def objective(self, batches: Sequence[Batch]) -> tuple[Tensor, Logs]:
        x, y = self.gather(batches)
        z, z_aug = two_views(lambda after: self.features(x, after), draw_view(self, len(x)))
        main = F.cross_entropy(self.head(z), y) + F.cross_entropy(self.head(z_aug), y)
        consistency = (z - z_aug).square().mean()
        loss = main + self.hp.alpha * consistency  # Eq. 2 with f_w = identity
        return loss, {"loss": main.item(), "consistency": consistency.item()}


def mixing_points(algorithm: Algorithm) -> tuple[str, ...]:
    """Return the blocks after which ITTA mixes styles: the first two."""
    return algorithm.backbone.block_names[:2]


def draw_view(algorithm: Algorithm, n: int) -> ViewDraw:
    """Draw the second view of n images with the algorithm's hyper-parameters."""
    hp = algorithm.hp
    if hp.view == "noise":
        return draw_noise(n, algorithm.backbone.dim, hp.sfa_sigma)
    return draw_mix(n, mixing_points(algorithm), hp.mix_alpha)


def draw_target_view(model: Algorithm, n: int, bank_below: int, generator: torch.Generator) -> ViewDraw:
    """Draw the second view as in training, for a model of any method.

    A batch of fewer than ``bank_below`` images is too small to mix with itself. It takes styles from the model's bank.
    """
    alpha = getattr(model.hp, "mix_alpha", 0.1)
    if getattr(model.hp, "view", "mixstyle") == "noise":
        return draw_noise(n, model.backbone.dim, model.hp.sfa_sigma, generator)
    if n < bank_below and model.style_bank is not None:
        return model.style_bank.draw(n, alpha, generator)
    if n == 1 and bank_below > 0:
        raise InputError(
            "expected at least 2 images, because this model has no style bank to mix one image with, got 1: "
            "send larger batches, or train the model again with this version."
        )
    return draw_mix(n, mixing_points(model), alpha, generator)
