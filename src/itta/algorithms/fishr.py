"""Fishr. Fishr: Invariant Gradient Variances for Out-of-Distribution Generalization. Rame, Dancette, Cord, ICML 2022.
https://arxiv.org/abs/2109.02934

As in DomainBed, the running means have no bias correction: they grow to v/(1−γ). Here they are part of the model's
state, so a checkpoint holds them. torch.func computes the per-sample gradients, for any head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from itta.algorithms import base
from itta.algorithms.base import Algorithm, Batch, Logs, Needs, Task
from itta.hparams import hp, power, uniform


@dataclass(frozen=True)
class Hparams(base.Hparams):
    lambda_: float = hp(1000.0, "weight of the penalty after annealing", power(10, 1, 4), drawn_as="lambda")
    penalty_anneal_iters: int = hp(1500, "steps without the penalty", uniform(0, 5000, whole=True))
    ema: float = hp(0.95, "γ: share of the running mean that each step keeps", uniform(0.9, 0.99))


class Fishr(Algorithm):
    """v_e: variance over domain e of each image's gradient for the head φ;  m_e ← γ·m_e + (1−γ)·v_e;

    min CE(o, y) + λ·⟨(1/P)‖m_e − ⟨m⟩‖²⟩_e/(1−γ)², with P parameters; the old m_e is constant.
    """

    name = "fishr"
    paper = "Rame et al., Fishr: Invariant Gradient Variances for Out-of-Distribution Generalization, ICML 2022"
    Hparams = Hparams
    needs = Needs(single_source="split", second_order="the head")

    step: Tensor
    variances: Tensor

    def __init__(self, task: Task, hp: Any) -> None:
        super().__init__(task, hp)
        self.register_buffer("step", torch.zeros((), dtype=torch.long))
        n_parameters = sum(p.numel() for p in self.head.parameters())
        self.register_buffer("variances", torch.zeros(self.n_domains, n_parameters))  # m

    def objective(self, batches: Sequence[Batch]) -> tuple[Tensor, Logs]:
        batches = self.per_domain(batches)
        x, y = self.gather(batches)
        z = self.features(x)
        nll = F.cross_entropy(self.classify(z), y)
        gradients = head_gradients(self.head, z, y).split([len(x) for x, _ in batches])
        variances = torch.stack([g.var(0, correction=0) for g in gradients])  # v [S, P]
        used = variances + self.hp.ema / (1 - self.hp.ema) * self.variances  # m/(1−γ): unit gradient on v
        self.variances = (1 - self.hp.ema) * used.detach()
        penalty = (used - used.mean(0)).square().mean()

        threshold = self.hp.penalty_anneal_iters
        weight = self.hp.lambda_ if int(self.step) >= threshold else 0.0
        if int(self.step) == threshold > 0:
            self.optimizers["main"].state.clear()  # the loss jumps by orders of magnitude
        self.step += 1
        loss = nll + weight * penalty
        return loss, {"loss": loss, "nll": nll, "penalty": penalty}


def head_gradients(head: nn.Module, z: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of each image's cross-entropy for the head's parameters, [N, P]."""

    def loss(parameters: dict[str, Tensor], z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(head, parameters, (z[None],)), y[None])

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))(dict(head.named_parameters()), z, y)
    return torch.cat([g.flatten(1) for g in gradients.values()], 1)
