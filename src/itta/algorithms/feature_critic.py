"""Feature-Critic. Feature-Critic Networks for Heterogeneous Domain Generalization.
Li, Yang, Zhou, Hospedales, ICML 2019. https://arxiv.org/abs/1901.11448

Here it runs in DomainBed's loop. Each step holds out one domain and trains on the others. Real steps are Adam's. There
is no ERM pre-training. The critic's gradient is computed before any weight changes. It needs no second-order
backpropagation through the network: the critic's derivative of ⟨v, ∇_θ A⟩ equals that of ⟨J v, ∂A/∂z⟩, and
J v = (∂z/∂θ)·v comes from the tape of the pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from itta.algorithms import base
from itta.algorithms.base import Algorithm, Batch, Needs, Numbers, Task
from itta.functional.domains import domain_means, domain_risks
from itta.functional.jvp import Tape
from itta.functional.transfers import fetch_numbers
from itta.hparams import hp, power
from itta.nn.mlp import mlp


@dataclass(frozen=True)
class Hparams(base.Hparams):
    critic_beta: float = hp(0.01, "β: weight of the critic's loss", power(10, -3, 1))
    critic_lr: float = hp(1e-3, "learning rate of the critic's Adam")
    critic_scale: float = hp(1.0, "h: factor of the meta loss")
    critic_width: int = hp(100, "width of the critic")


class FeatureCritic(Algorithm):
    """Train on the domains T, hold out V. The critic A_ω(z) ≥ 0 is a mean over images; α = lr.

    L_m = Σ_T CE,  L_d = β·Σ_T A_ω(z);   θ_old = θ − α∇L_m,  θ_new = θ_old − α∇L_d;
    ω     steps on J = −h·tanh(CE_V(θ_old, φ) − CE_V(θ_new, φ)), through ∇_θ L_d;
    θ, φ  step on L_m + L_d.
    """

    name = "feature_critic"
    paper = "Li et al., Feature-Critic Networks for Heterogeneous Domain Generalization, ICML 2019"
    Hparams = Hparams
    needs = Needs(domains=2, single_source="split", networks=("critic",), second_order="the critic")

    def __init__(self, task: Task, hp: Any) -> None:
        super().__init__(task, hp)
        self.critic = nn.Sequential(*mlp(self.backbone.dim, hp.critic_width, 1), nn.Softplus())
        self.add_optimizer("critic", self.critic.parameters(), hp.critic_lr)

    def update(self, batches: Sequence[Batch]) -> Numbers:
        batches = self.per_domain(batches)
        held_out = int(torch.randint(len(batches), ()))
        test = batches.pop(held_out)
        sizes = [len(x) for x, _ in batches]
        x, y = self.gather(batches)
        with Tape() as tape:
            z = self.features(x)
        main = domain_risks(self.classify(z), y, sizes).sum()
        critic = self.critic_loss(z, sizes)
        theta, phi = list(self.backbone.parameters()), list(self.head.parameters())
        g = torch.autograd.grad(main, [*theta, *phi], retain_graph=True)
        g_main, g_phi = g[: len(theta)], g[len(theta) :]
        g_critic = torch.autograd.grad(critic, theta)

        meta, v = self.meta_gradient(test, g_main, g_critic)
        j_v = tape.jvp(dict(zip(theta, v)), z)
        self.optimizers["critic"].zero_grad()
        self.critic_product(z, j_v, sizes).mul(-self.hp.lr).backward(inputs=list(self.critic.parameters()))
        self.optimizers["critic"].step()

        for p, m, c in zip(theta, g_main, g_critic):
            p.grad = m.add_(c)
        for p, m in zip(phi, g_phi):
            p.grad = m
        self.optimizers["main"].step()
        return fetch_numbers({"loss": main, "critic": critic, "meta": meta})

    def critic_loss(self, z: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return L_d."""
        return self.hp.critic_beta * domain_means(self.critic(z).squeeze(1), sizes).sum()

    def critic_product(self, z: Tensor, j_v: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return ⟨J v, ∂L_d/∂z⟩ = ⟨v, ∇_θ L_d⟩ as a function of ω."""
        z = z.detach().requires_grad_()
        (u,) = torch.autograd.grad(self.critic_loss(z, sizes), z, create_graph=True)
        return (u * j_v).sum()

    def meta_gradient(
        self, test: Batch, g_main: Sequence[Tensor], g_critic: Sequence[Tensor]
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Return J and v = ∂J/∂θ_new."""
        with torch.no_grad():
            theta = [p.sub(m, alpha=self.hp.lr) for p, m in zip(self.backbone.parameters(), g_main)]
            old = self.loss_at(theta, test)
            for p, c in zip(theta, g_critic):
                p.sub_(c, alpha=self.hp.lr)
        theta = [p.requires_grad_() for p in theta]
        meta = -self.hp.critic_scale * torch.tanh(old - self.loss_at(theta, test))
        return meta, torch.autograd.grad(meta, theta)

    def loss_at(self, theta: Sequence[Tensor], test: Batch) -> Tensor:
        """Return CE_V at other weights of the backbone. The statistics of batch normalisation do not change."""
        names = [name for name, _ in self.backbone.named_parameters(prefix="backbone")]
        statistics = {name: b.clone() for name, b in self.named_buffers()}
        return F.cross_entropy(functional_call(self, {**dict(zip(names, theta)), **statistics}, (test[0],)), test[1])
