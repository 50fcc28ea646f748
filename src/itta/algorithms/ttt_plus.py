"""TTT++, the training half. TTT++: When Does Self-Supervised Test-Time Training Fail or Thrive?
Liu, Kothari, van Delft, Bellot-Gurlet, Mordan, Alahi, NeurIPS 2021. https://openreview.net/forum?id=86NHK__yFDl

Here it runs in DomainBed's loop, with one Adam for all weights and views from DomainBed's augmentation. The authors
collect the moments of the source's features after training. Here the moments are a running average over the last steps,
over augmented training images, of a network that still changes a little. The fourth moment is kept too: it gives the
distance that the moments of a few source images have by chance. The search range of the weight is ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from itta.algorithms import base
from itta.algorithms.base import Algorithm, Batch, Logs, Needs, Task
from itta.functional.self_supervision import draw_views, make_views, nt_xent
from itta.hparams import hp, power
from itta.nn.mlp import mlp
from itta.nn.running_moments import RunningMoments


@dataclass(frozen=True)
class Hparams(base.Hparams):
    simclr_weight: float = hp(1.0, "weight of the contrastive loss", power(10, -1, 1))
    simclr_temperature: float = hp(0.5, "temperature of the contrastive loss")
    simclr_dim: int = hp(128, "size of a projection")
    moments_window: int = hp(100, "number of last steps in the average of the features' moments")


class TTTPlus(Algorithm):
    """Projections h = g(f_θ(view)) of two views of every image, u = h/‖h‖; view j is the other view of i's image:

    min CE(f(x), y) + weight·mean_i −log [exp(u_i·u_j/T) / Σ_{k≠i} exp(u_i·u_k/T)].

    The model keeps mean, covariance and E‖z − μ‖⁴ of the features z = f_θ(x), and of g(z), for test time.
    """

    name = "ttt++"
    paper = "Liu et al., TTT++: When Does Self-Supervised Test-Time Training Fail or Thrive?, NeurIPS 2021"
    Hparams = Hparams
    needs = Needs(networks=("contrastive head",))

    def __init__(self, task: Task, hp: Any) -> None:
        super().__init__(task, hp)
        dim = self.backbone.dim
        self.contrastive_head = mlp(dim, dim, hp.simclr_dim)
        self.add_optimizer("main", self.parameters(), hp.lr, hp.weight_decay)
        self.feature_moments = RunningMoments(dim, hp.moments_window)
        self.projection_moments = RunningMoments(hp.simclr_dim, hp.moments_window)

    def objective(self, batches: Sequence[Batch]) -> tuple[Tensor, Logs]:
        x, y = self.gather(batches)
        views = make_views(x, draw_views(len(x)))
        z, z_views = self.backbone(self.inputs(torch.cat([x, views]))).split([len(x), len(views)])
        loss = F.cross_entropy(self.classify(self.dropout(z)), y)
        contrast = nt_xent(self.contrastive_head(z_views), self.hp.simclr_temperature)
        self.note_moments(z.detach())
        return loss + self.hp.simclr_weight * contrast, {"loss": loss, "contrast": contrast}

    @torch.no_grad()
    def note_moments(self, z: Tensor) -> None:
        """Add the features of a batch to the moments."""
        self.feature_moments.update(z)
        self.projection_moments.update(self.contrastive_head(z))
