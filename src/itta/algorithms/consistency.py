"""MixStyle with plain consistency: ITTA without its learnable loss ("Ours w/o f_w" in the paper's tables).

Improved Test-Time Adaptation for Domain Generalization. Chen, Zhang, Song, Shan, Liu, CVPR 2023.
https://arxiv.org/abs/2304.04494
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from itta.algorithms import base
from itta.algorithms.base import Algorithm, Batch, Logs, Needs
from itta.hparams import hp, power
from itta.models.trained import ViewKind
from itta.nn.style_mixing import draw_mix
from itta.nn.views import ViewDraw, draw_noise, mixing_points, two_views


@dataclass(frozen=True)
class Hparams(base.Hparams):
    alpha: float = hp(1.0, "weight of the consistency loss, Eq. 2")
    view: ViewKind = hp("mixstyle", "how the second view is made: by MixStyle, or by noise on the features")
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
        return loss, {"loss": main, "consistency": consistency}


def draw_view(algorithm: Algorithm, n: int) -> ViewDraw:
    """Draw the second view of n images with the algorithm's hyper-parameters."""
    hp = algorithm.hp
    if hp.view == "noise":
        return draw_noise(n, algorithm.backbone.dim, hp.sfa_sigma)
    return draw_mix(n, mixing_points(algorithm.backbone), hp.mix_alpha)
