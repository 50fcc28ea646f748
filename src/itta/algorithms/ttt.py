"""TTT, the training half. Test-Time Training with Self-Supervision for Generalization under Distribution Shifts.
Sun, Wang, Liu, Miller, Efros, Hardt, ICML 2020. https://arxiv.org/abs/1909.13231

Here it runs in DomainBed's loop, with one Adam for all weights. The rotation branch starts as a copy of the last block,
so in a pretrained network it is pretrained too. The search range of the weight is ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itta.algorithms import base
from itta.algorithms.base import Algorithm, Batch, Logs, Needs, Task
from itta.functional.self_supervision import rotate
from itta.functional.transfers import send
from itta.hparams import hp, power
from itta.nn.backbone import After, keep
from itta.nn.branch import Branch


@dataclass(frozen=True)
class Hparams(base.Hparams):
    ttt_weight: float = hp(1.0, "weight of the rotation loss", power(10, -1, 1))
    ttt_rotation: Literal["random", "expand"] = hp("random", "rotate each image at random, or by all four angles")


class TTT(Algorithm):
    """min CE(f(x), y) + weight·CE(f_rot(x_k), k), where x_k is the image x rotated by k ∈ {0, 1, 2, 3} quarter turns.

    f and f_rot share all blocks but the last. Each has its own last block and its own linear layer.
    """

    name = "ttt"
    paper = (
        "Sun et al., Test-Time Training with Self-Supervision for Generalization under Distribution Shifts, ICML 2020"
    )
    Hparams = Hparams
    needs = Needs(networks=("rotation branch", "rotation head"))

    def __init__(self, task: Task, hp: Any) -> None:
        super().__init__(task, hp)
        self.rotation_branch = Branch(self.backbone)
        self.rotation_head = nn.Linear(self.backbone.dim, 4)
        self.add_optimizer("main", self.parameters(), hp.lr, hp.weight_decay)

    def rotation_logits(self, x: Tensor, after: After = keep, own: After = keep) -> Tensor:
        """Turn the result of `inputs` into logits [B, 4] of the rotations. `Branch` explains ``after`` and ``own``."""
        return self.rotation_head(self.rotation_branch(self.backbone, x, after, own))

    def objective(self, batches: Sequence[Batch]) -> tuple[Tensor, Logs]:
        x, y = self.gather(batches)
        turns = draw_turns(len(x), self.hp.ttt_rotation)
        turned = rotate(x.repeat(len(turns) // len(x), 1, 1, 1), turns)
        loss = F.cross_entropy(self.predict(x), y)
        rotation = F.cross_entropy(self.rotation_logits(self.inputs(turned)), send(turns, x.device))
        return loss + self.hp.ttt_weight * rotation, {"loss": loss, "rotation": rotation}


def draw_turns(n: int, how: str) -> Tensor:
    """Draw a rotation for each image, [n], or return all four for each, [4n], sorted by rotation."""
    return torch.randint(4, (n,)) if how == "random" else torch.arange(4).repeat_interleave(n)
