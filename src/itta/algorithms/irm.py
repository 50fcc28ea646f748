"""IRM. Invariant Risk Minimization. Arjovsky, Bottou, Gulrajani, Lopez-Paz, 2019. https://arxiv.org/abs/1907.02893

IRMv1 with DomainBed's unbiased estimate: the squared derivative is a product of two derivatives, one for each half of a
domain's batch, so the penalty can be negative. The derivative is in closed form, without autograd. As in DomainBed, the
penalty has weight 1, not 0, before the annealing step, and Adam restarts at that step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from itta.algorithms import base
from itta.algorithms.base import Algorithm, Batch, Logs, Needs, Task
from itta.functional.domains import domain_risks
from itta.hparams import hp, power


@dataclass(frozen=True)
class Hparams(base.Hparams):
    irm_lambda: float = hp(100.0, "weight of the penalty after annealing", power(10, -1, 5))
    irm_penalty_anneal_iters: int = hp(500, "annealing: steps with weight 1", power(10, 0, 4, whole=True))


class IRM(Algorithm):
    """min ⟨L_e⟩ + λ·⟨D_e⟩ over domains e, where

    D_e = mean(r_i, i even)·mean(r_i, i odd),  r_i = d/ds CE(s·o_i, y_i) at s = 1  = Σ_k (p_ik − 1[k = y_i])·o_ik.
    """

    name = "irm"
    paper = "Arjovsky et al., Invariant Risk Minimization, 2019"
    Hparams = Hparams
    needs = Needs(second_order="the loss as a function of the logits' scale, in closed form")

    step: Tensor

    def __init__(self, task: Task, hp: Any) -> None:
        super().__init__(task, hp)
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def objective(self, batches: Sequence[Batch]) -> tuple[Tensor, Logs]:
        sizes = [len(x) for x, _ in batches]
        x, y = self.gather(batches)
        logits = self.predict(x)
        nll = domain_risks(logits, y, sizes).mean()
        penalty = torch.stack([split_square(r) for r in scale_derivative(logits, y).split(sizes)]).mean()
        annealed = int(self.step) >= self.hp.irm_penalty_anneal_iters
        if int(self.step) == self.hp.irm_penalty_anneal_iters:
            self.optimizers["main"].state.clear()  # the loss jumps by orders of magnitude
        self.step += 1
        loss = nll + (self.hp.irm_lambda if annealed else 1.0) * penalty
        return loss, {"loss": loss, "nll": nll, "penalty": penalty}


def scale_derivative(logits: Tensor, y: Tensor) -> Tensor:
    """Return r [N]: the derivative of each image's cross-entropy for a factor on its logits, at 1."""
    return ((logits.softmax(1) - F.one_hot(y, logits.shape[1])) * logits).sum(1)


def split_square(r: Tensor) -> Tensor:
    """Estimate (E r)² without bias from two independent halves; 0 if one half is empty.

    >>> split_square(torch.tensor([1.0, 10.0, 3.0]))
    tensor(20.)
    """
    return r[::2].mean() * r[1::2].mean() if len(r) > 1 else r.sum() * 0
