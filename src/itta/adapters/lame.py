"""LAME. Parameter-free Online Test-time Adaptation. Boudiaf, Mueller, Ben Ayed, Bertinetto, CVPR 2022.
https://arxiv.org/abs/2201.05718

With ``affinity=knn`` an image is never its own neighbour, also among duplicates. The bandwidth of ``affinity=rbf``
counts the image itself as its first neighbour, as the released code does. LAME helps if the images of a batch tend to
be of one class, and can harm if they are drawn at random.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from itta.adapters.base import Adapter, check_at_least
from itta.functional.affinity import agree, knn_affinity, linear_affinity, rbf_affinity
from itta.hparams import hp
from itta.models.trained import Trained


@dataclass(frozen=True)
class Hparams:
    affinity: Literal["knn", "rbf", "linear"] = hp(
        "knn",
        "W. knn: 1 for the k nearest neighbours; rbf: exp(−d²/2σ²), σ the mean distance to the k-th, the image itself "
        "being the first; linear: z·z",
    )
    neighbours: int = hp(5, "k: number of neighbours")
    iterations: int = hp(100, "largest number of iterations; it stops earlier when the energy no longer changes")


class LAME(Adapter):
    """min_Y Σ_i KL(Y_i ‖ p_i) − ½ Σ_ij W_ij Y_i·Y_j over the batch, by Y ← softmax(log p + W·Y) from Y = p.

    W is the affinity of the L2-normalised features. The network does not change, and nothing is kept between batches.
    """

    name = "lame"
    paper = "Boudiaf et al., Parameter-free Online Test-time Adaptation, CVPR 2022"
    Hparams = Hparams
    predicts = "after"

    def __init__(self, trained: Trained, hp: Any) -> None:
        super().__init__(trained, hp)
        check_at_least(1, hp, "neighbours", "iterations")

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        z = self.still.features(self.receive(x))
        return agree(self.model.classify(z).log_softmax(1), self.affinity(F.normalize(z)), self.hp.iterations)

    def affinity(self, z: Tensor) -> Tensor:
        if self.hp.affinity == "linear":
            return linear_affinity(z)
        return (knn_affinity if self.hp.affinity == "knn" else rbf_affinity)(z, self.hp.neighbours)
