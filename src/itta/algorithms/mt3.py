"""MT3, the training half. MT3: Meta Test-Time Training for Self-Supervised Test-Time Adaption.
Bartler, Bühler, Wiewel, Döbler, Yang, AISTATS 2022. https://arxiv.org/abs/2103.16201

Here it runs in DomainBed's loop. A task is the batch of one source domain; the paper's tasks have eight images. Outer
steps are Adam's. DomainBed's augmentation draws the views of each image; the paper flips and blurs whole tasks.
Projector and predictor have no normalisation, so that a task may be one image. The search ranges are ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from itta.algorithms import base
from itta.algorithms.base import Algorithm, Batch, Needs, Numbers, Task
from itta.functional.self_supervision import byol, draw_views, make_views
from itta.functional.transfers import fetch_numbers
from itta.hparams import hp, power
from itta.nn.mlp import mlp


@dataclass(frozen=True)
class Hparams(base.Hparams):
    mt3_inner_lr: float = hp(0.1, "α: size of the inner step, also at test time", power(10, -2, 0))
    mt3_weight: float = hp(0.1, "γ: weight of the BYOL loss in the outer loss", power(10, -2, 0))
    mt3_clip: float = hp(10.0, "largest norm of a tensor's gradient in the inner step")
    mt3_width: int = hp(256, "hidden units of projector and predictor")
    mt3_dim: int = hp(128, "size of a projection")
    mt3_first_order: bool = hp(False, "treat the inner gradient as a constant, which costs less")


class MT3(Algorithm):
    """Projector g, predictor q, two views a, b of every image; v = g(f_θ(·)), constant in the loss:

    L_BYOL = ⟨2 − 2 cos(q(g(f_θ(a))), v_b)⟩ + ⟨2 − 2 cos(q(g(f_θ(b))), v_a)⟩.

    In each step every domain is a task: θ' = θ − α·clip(∇_θ L_BYOL), each tensor's gradient clipped by its norm;
    min mean over tasks of CE(f_θ'(x), y) + γ·L_BYOL, through the inner step.
    """

    name = "mt3"
    paper = "Bartler et al., MT3: Meta Test-Time Training for Self-Supervised Test-Time Adaption, AISTATS 2022"
    Hparams = Hparams
    needs = Needs(networks=("projector", "predictor"), second_order="the BYOL loss, unless mt3_first_order")

    def __init__(self, task: Task, hp: Any) -> None:
        super().__init__(task, hp)
        self.projector = mlp(self.backbone.dim, hp.mt3_width, hp.mt3_dim)
        self.predictor = mlp(hp.mt3_dim, hp.mt3_width, hp.mt3_dim)
        self.add_optimizer("main", self.parameters(), hp.lr, hp.weight_decay)

    def update(self, batches: Sequence[Batch]) -> Numbers:
        tasks = self.per_domain(batches)
        self.optimizers["main"].zero_grad()
        losses = []
        for x, y in tasks:  # one backward per task, to hold the graph of one inner step at a time
            loss, self_supervised = self.task_losses(x, y)
            ((loss + self.hp.mt3_weight * self_supervised) / len(tasks)).backward()
            losses.append(torch.stack([loss.detach(), self_supervised.detach()]))
        self.optimizers["main"].step()
        return fetch_numbers(dict(zip(("loss", "byol"), torch.stack(losses).mean(0))))

    def task_losses(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return CE after the inner step, and L_BYOL, the loss of that step.

        Only θ takes the inner step: CE does not depend on projector and predictor.
        """
        with sdpa_kernel(SDPBackend.MATH):  # fused attention cannot be differentiated twice
            projected = self.project(make_views(x, draw_views(len(x))))
        self_supervised = byol(self.predictor(projected), projected)
        theta = dict(self.backbone.named_parameters(prefix="backbone"))
        gradients = torch.autograd.grad(
            self_supervised, list(theta.values()), retain_graph=True, create_graph=not self.hp.mt3_first_order,
            materialize_grads=True,
        )  # fmt: skip
        stepped = {
            name: p - self.hp.mt3_inner_lr * clip(g, self.hp.mt3_clip) for (name, p), g in zip(theta.items(), gradients)
        }
        return F.cross_entropy(functional_call(self, stepped, (x,)), y), self_supervised

    def project(self, views: Tensor) -> Tensor:
        """Return v = g(f_θ(views))."""
        return self.projector(self.backbone(self.inputs(views)))


def clip(g: Tensor, longest: float) -> Tensor:
    """Scale a gradient to the norm ``longest`` if its norm is larger."""
    return g * (longest / g.norm().clamp(min=longest))
