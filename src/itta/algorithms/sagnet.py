"""SagNet. Reducing Domain Gap by Reducing Style Bias. Nam, Lee, Park, Yoon, Yoo, CVPR 2021.
https://arxiv.org/abs/1910.11645

DomainBed's form acts on the pooled feature vector: its "style" is one mean and one variance over the features. The
authors randomise feature maps in the middle of the network. The second and third step use the same features, so they
share one pass. (Live batch normalisation therefore updates its statistics twice per step, not three times.)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from itta.algorithms import base
from itta.algorithms.base import Algorithm, Batch, Needs, Numbers, Task
from itta.functional.transfers import fetch_numbers
from itta.hparams import hp, power

EPS = 1e-5


@dataclass(frozen=True)
class Hparams(base.Hparams):
    sag_w_adv: float = hp(0.1, "weight of the adversarial loss", power(10, -2, 1))


class SagDraw(NamedTuple):
    alpha: Tensor  # [N, 1], share of an image's own style
    partner: Tensor  # [N], a permutation


class SagNet(Algorithm):
    """Style: μ, v, the mean and variance over a vector's entries; content: z̄ = (z − μ)/√v. In each update,

    1. θ and φ step on CE(f_φ(z̄·√v' + μ'), y), with the styles v', μ' mixed with a partner's;
    2. the style head s steps on CE(s(z̄_partner·√v + μ), y), with constant content;
    3. θ steps on w·CE(s(z̄_partner·√v + μ), uniform).
    """

    name = "sagnet"
    paper = "Nam et al., Reducing Domain Gap by Reducing Style Bias, CVPR 2021"
    Hparams = Hparams
    needs = Needs(networks=("style head",))

    def __init__(self, task: Task, hp: Any) -> None:
        super().__init__(task, hp)
        self.style_head = task.make_head(self.backbone.dim, task.n_classes)
        for name, part in {"main": self.backbone, "head": self.head, "style_head": self.style_head}.items():
            self.add_optimizer(name, part.parameters(), hp.lr, hp.weight_decay)

    def update(self, batches: Sequence[Batch]) -> Numbers:
        x, y = self.gather(batches)
        n = len(x)
        content = F.cross_entropy(self.head(mix_styles(self.features(x), draw_sag(n, x))), y)
        self.step(content, "main", "head")

        z = self.backbone(x)
        style = F.cross_entropy(self.style_head(swap_content(self.dropout(z.detach()), draw_sag(n, x))), y)
        self.step(style, "style_head")

        logits = self.style_head(swap_content(self.dropout(z), draw_sag(n, x)))
        adversarial = -self.hp.sag_w_adv * logits.log_softmax(1).mean()
        self.step(adversarial, "main")
        return fetch_numbers({"loss_cont": content, "loss_style": style, "loss_adv": adversarial})

    def step(self, loss: Tensor, *names: str) -> None:
        """Step the parameters of the named optimisers, and compute no other gradient."""
        optimizers = [self.optimizers[name] for name in names]
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward(inputs=[p for o in optimizers for p in o.param_groups[0]["params"]])
        for optimizer in optimizers:
            optimizer.step()


def draw_sag(n: int, like: Tensor) -> SagDraw:
    return SagDraw(torch.rand(n, 1, dtype=like.dtype, device=like.device), torch.randperm(n, device=like.device))


def normalise(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return content, mean and (unbiased) variance of each vector."""
    var, mean = torch.var_mean(z, 1, keepdim=True)
    return (z - mean) / (var + EPS).sqrt(), mean, var


def mix_styles(z: Tensor, draw: SagDraw) -> Tensor:
    """Mix the style of each vector with the style of its partner."""
    content, mean, var = normalise(z)
    mean = draw.alpha * mean + (1 - draw.alpha) * mean[draw.partner]
    var = draw.alpha * var + (1 - draw.alpha) * var[draw.partner]
    return content * (var + EPS).sqrt() + mean


def swap_content(z: Tensor, draw: SagDraw) -> Tensor:
    """Give each vector the content of its partner, as a constant, and keep its own style."""
    content, mean, var = normalise(z)
    return content[draw.partner].detach() * (var + EPS).sqrt() + mean
