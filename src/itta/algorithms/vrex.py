"""VREx. Out-of-Distribution Generalization via Risk Extrapolation (REx).
Krueger, Caballero, Jacobsen, Zhang, Binas, Zhang, Le Priol, Courville, ICML 2021. https://arxiv.org/abs/2003.00688

As in DomainBed, the variance has weight 1 before the annealing step, and Adam restarts at that step. DomainBed logs the
last domain's risk as nll; we log the mean. ``reference`` logs as DomainBed; training is the same.
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
    vrex_lambda: float = hp(10.0, "weight of the variance after annealing", power(10, -1, 5))
    vrex_penalty_anneal_iters: int = hp(500, "annealing: steps with weight 1", power(10, 0, 4, whole=True))
    reference: bool = hp(False, "log the last domain's risk as nll, as DomainBed does")


class VREx(Algorithm):
    """min ⟨L_e⟩ + λ·⟨(L_e − ⟨L⟩)²⟩ over domains e."""

    name = "vrex"
    paper = "Krueger et al., Out-of-Distribution Generalization via Risk Extrapolation, ICML 2021"
    Hparams = Hparams
    needs = Needs(single_source="split")

    step: Tensor

    def __init__(self, task: Task, hp: Any) -> None:
        super().__init__(task, hp)
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def objective(self, batches: Sequence[Batch]) -> tuple[Tensor, Logs]:
        batches = self.per_domain(batches)
        x, y = self.gather(batches)
        risks = domain_risks(self.predict(x), y, [len(x) for x, _ in batches])
        penalty = risks.var(correction=0)
        annealed = int(self.step) >= self.hp.vrex_penalty_anneal_iters
        if int(self.step) == self.hp.vrex_penalty_anneal_iters:
            self.optimizers["main"].state.clear()  # the loss jumps by orders of magnitude
        self.step += 1
        loss = risks.mean() + (self.hp.vrex_lambda if annealed else 1.0) * penalty
        nll = risks[-1] if self.hp.reference else risks.mean()
        return loss, {"loss": loss, "nll": nll, "penalty": penalty}
