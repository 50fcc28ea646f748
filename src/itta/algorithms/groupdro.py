"""GroupDRO. Distributionally Robust Neural Networks for Group Shifts.
Sagawa, Koh, Hashimoto, Liang, ICLR 2020. https://arxiv.org/abs/1911.08731

The tables of the ITTA paper call it GroupGRO. All domains share one pass. The weights q are updated in log space, where
no loss overflows, and are part of the model's state from the start.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from itta.algorithms import base
from itta.algorithms.base import Algorithm, Batch, Logs, Needs, Task
from itta.functional.domains import domain_risks
from itta.hparams import hp, power


@dataclass(frozen=True)
class Hparams(base.Hparams):
    groupdro_eta: float = hp(1e-2, "η: step size of the weights of the domains", power(10, -3, -1))


class GroupDRO(Algorithm):
    """q_e ← q_e·exp(η·L_e), then q ← q/Σq;  min Σ_e q_e·L_e with q constant."""

    name = "groupdro"
    paper = "Sagawa et al., Distributionally Robust Neural Networks for Group Shifts, ICLR 2020"
    Hparams = Hparams
    needs = Needs(single_source="split")

    q: Tensor

    def __init__(self, task: Task, hp: Any) -> None:
        super().__init__(task, hp)
        self.register_buffer("q", torch.ones(self.n_domains))

    def objective(self, batches: Sequence[Batch]) -> tuple[Tensor, Logs]:
        batches = self.per_domain(batches)
        x, y = self.gather(batches)
        risks = domain_risks(self.predict(x), y, [len(x) for x, _ in batches])
        self.q = (self.q.log() + self.hp.groupdro_eta * risks.detach()).softmax(0)
        loss = (self.q * risks).sum()
        return loss, {"loss": loss}
