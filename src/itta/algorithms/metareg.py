"""MetaReg. MetaReg: Towards Domain Generalization using Meta-Regularization.
Balaji, Sankaranarayanan, Chellappa, NeurIPS 2018.

The authors published no code, and we do not know the sizes of their steps: this follows the method, with settings of
our own. In the first metareg_steps the method learns the regulariser and one head for each domain. Then backbone and
head restart and learn with the regulariser. Three things differ from the paper. The network steps with Adam on the sum
of the domains' losses. φ steps on the features of the same pass, before the network changes; the paper changes the
network first and draws new batches. φ starts small and cannot become negative, since a negative φ would let weights
grow without limit. Before the second phase, predictions use the mean of the heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from itta.algorithms import base
from itta.algorithms.base import Algorithm, Batch, Logs, Needs, Numbers, Task
from itta.functional.domains import domain_risks
from itta.functional.transfers import fetch_numbers
from itta.hparams import hp, power

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Hparams(base.Hparams):
    metareg_steps: int = hp(1000, "steps that learn the regulariser")
    metareg_inner_steps: int = hp(3, "l: unrolled steps of the head")
    metareg_inner_lr: float = hp(1e-2, "α₂: size of the unrolled steps", power(10, -3, -1))
    metareg_lr: float = hp(1e-3, "α₃: learning rate of φ's Adam", power(10, -4, -2))
    metareg_start: float = hp(1e-3, "initial value of φ")


class MetaReg(Algorithm):
    """R_φ(θ) = Σ_k φ_k|θ_k| over the parameters θ of the head. In the first phase each domain e has a head θ_e, and

    ψ, θ_e  step on Σ_e L_e(ψ, θ_e);
    φ       steps on L_b(ψ, β_l) for domains a ≠ b, β_0 = θ_a, β ← β − α₂∇_β[L_a(ψ, β) + R_φ(β)], through all l steps.

    In the second phase backbone and head restart: min Σ_e L_e(ψ, θ) + R_φ(θ).
    """

    name = "metareg"
    paper = "Balaji et al., MetaReg: Towards Domain Generalization using Meta-Regularization, NeurIPS 2018"
    Hparams = Hparams
    needs = Needs(
        domains=2, single_source="split", networks=("head per domain", "regulariser"), second_order="the head"
    )

    step: Tensor

    def __init__(self, task: Task, hp: Any) -> None:
        super().__init__(task, hp)
        self.heads = nn.ModuleList(task.make_head(self.backbone.dim, task.n_classes) for _ in range(self.n_domains))
        start = {k: nn.Parameter(torch.full_like(p, hp.metareg_start)) for k, p in self.head.named_parameters()}
        self.phi = nn.ParameterDict({k.replace(".", "_"): p for k, p in start.items()})
        self.add_optimizer("meta", [*self.backbone.parameters(), *self.heads.parameters()], hp.lr, hp.weight_decay)
        self.add_optimizer("phi", self.phi.parameters(), hp.metareg_lr)
        self.add_optimizer("main", [*self.backbone.parameters(), *self.head.parameters()], hp.lr, hp.weight_decay)
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def update(self, batches: Sequence[Batch]) -> Numbers:
        batches = self.per_domain(batches)
        step = int(self.step)
        self.step += 1
        if step < self.hp.metareg_steps:
            return self.meta_step(batches)
        if step == self.hp.metareg_steps:
            self.restart()
        return super().update(batches)

    def objective(self, batches: Sequence[Batch]) -> tuple[Tensor, Logs]:
        """Return the loss of the second phase."""
        x, y = self.gather(batches)
        risk = domain_risks(self.predict(x), y, [len(x) for x, _ in batches]).sum()
        penalty = self.regulariser(dict(self.head.named_parameters()), constant=True)
        return risk + penalty, {"loss": risk, "penalty": penalty}

    def meta_step(self, batches: Sequence[Batch]) -> Numbers:
        """Take a step of the first phase."""
        a, b = torch.randperm(len(batches))[:2].tolist()
        sizes = [len(x) for x, _ in batches]
        x, _ = self.gather(batches)
        features = self.features(x).split(sizes)
        risks = [F.cross_entropy(head(z), y) for head, z, (_, y) in zip(self.heads, features, batches)]
        loss = torch.stack(risks).sum()
        held_out = self.held_out_loss((features[a].detach(), batches[a][1]), (features[b].detach(), batches[b][1]), a)
        self.optimizers["phi"].zero_grad()
        held_out.backward(inputs=list(self.phi.parameters()))
        self.optimizers["meta"].zero_grad()
        loss.backward(inputs=[*self.backbone.parameters(), *self.heads.parameters()])
        for name in ("phi", "meta"):
            self.optimizers[name].step()
        with torch.no_grad():
            for phi in self.phi.values():
                phi.clamp_(min=0)
            for p, *of_heads in zip(self.head.parameters(), *(h.parameters() for h in self.heads)):
                p.copy_(torch.stack(of_heads).mean(0))
        return fetch_numbers({"loss": loss, "held_out": held_out})

    def held_out_loss(self, train: Batch, test: Batch, a: int) -> Tensor:
        """Return L_b after l steps of domain a's head on L_a + R_φ, as a function of φ. The batches hold features."""
        beta = {k: p.detach().requires_grad_() for k, p in self.heads[a].named_parameters()}
        for _ in range(self.hp.metareg_inner_steps):
            loss = F.cross_entropy(functional_call(self.heads[a], beta, (train[0],)), train[1]) + self.regulariser(beta)
            gradients = torch.autograd.grad(loss, list(beta.values()), create_graph=True)
            beta = {k: p - self.hp.metareg_inner_lr * g for (k, p), g in zip(beta.items(), gradients)}
        return F.cross_entropy(functional_call(self.heads[a], beta, (test[0],)), test[1])

    def regulariser(self, weights: Weights, constant: bool = False) -> Tensor:
        """Return R_φ."""
        terms = []
        for name, weight in weights.items():
            phi = self.phi[name.replace(".", "_")]
            terms.append(((phi.detach() if constant else phi) * weight.abs()).sum())
        return torch.stack(terms).sum()

    def restart(self) -> None:
        """Reset backbone and head to their state before training."""
        self.backbone.load_state_dict(self.task.make_backbone().state_dict())
        self.head.load_state_dict(self.task.make_head(self.backbone.dim, self.task.n_classes).state_dict())
