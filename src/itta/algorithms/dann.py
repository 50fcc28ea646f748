"""DANN. Domain-Adversarial Training of Neural Networks.
Ganin, Ustinova, Ajakan, Germain, Larochelle, Laviolette, Marchand, Lempitsky, JMLR 2016.
https://arxiv.org/abs/1505.07818

CDANN, the class-conditional form. Deep Domain Generalization via Conditional Invariant Adversarial Networks.
Li, Tian, Gong, Liu, Liu, Zhang, Tao, ECCV 2018. Here, as in DomainBed, there is one discriminator, and it sees the
class as an embedding added to the features. The paper has a set of discriminators.

DomainBed's form has no gradient reversal: steps of the discriminator and steps of the generator alternate, and each
counts as a step of the run. Two details of DomainBed are kept: the generator also maximises the discriminator's
gradient penalty, and Adam's second beta is 0.9. CDANN weighs images by the number of classes in the batch; DomainBed
uses the largest label in the batch plus one (``reference``). In the code of the ITTA paper the penalty was always zero:
set grad_penalty=0 for that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itta.algorithms import base
from itta.algorithms.base import Algorithm, Batch, Needs, Numbers, Task
from itta.functional.domains import domain_labels
from itta.functional.transfers import fetch_numbers, widen
from itta.hparams import choice, hp, power
from itta.nn.mlp import mlp


@dataclass(frozen=True)
class Hparams(base.Hparams):
    lambda_: float = hp(1.0, "weight of the domain loss in the generator's loss", power(10, -2, 2), drawn_as="lambda")
    weight_decay_d: float = hp(0.0, "L2 penalty of the discriminator", power(10, -6, -2))
    d_steps_per_g_step: int = hp(1, "discriminator steps for each step of the generator", power(2, 0, 3, whole=True))
    grad_penalty: float = hp(0.0, "weight of the discriminator's gradient penalty", power(10, -2, 1))
    beta1: float = hp(0.5, "first beta of both Adams", choice(0.0, 0.5))
    mlp_width: int = hp(256, "width of the discriminator", power(2, 6, 10, whole=True))
    mlp_depth: int = hp(3, "linear layers of the discriminator", choice(3, 4, 5))
    mlp_dropout: float = hp(0.0, "dropout of the discriminator", choice(0.0, 0.1, 0.5))
    lr_g: float = hp(
        5e-5, "learning rate of backbone and head; lr has no effect", power(10, -5, -3.5),
        small=(1e-3, power(10, -4.5, -2.5)),
    )  # fmt: skip
    lr_d: float = hp(
        5e-5, "learning rate of the discriminator", power(10, -5, -3.5), small=(1e-3, power(10, -4.5, -2.5))
    )
    weight_decay_g: float = hp(0.0, "L2 penalty of backbone and head", power(10, -6, -2), small=(0.0, None))


@dataclass(frozen=True)
class ConditionalHparams(Hparams):
    reference: bool = hp(False, "weigh images by the largest label plus one, as DomainBed does")


class DANN(Algorithm):
    """ℓ_D = CE(D(z), domain) + penalty·(1/N)·Σ_i ‖∂ce_i/∂z_i‖², with ce_i the domain loss of image i.

    d steps of D on ℓ_D alternate with one step of θ, φ on CE(f_φ(z), y) − λ·ℓ_D.
    """

    name = "dann"
    paper = "Ganin et al., Domain-Adversarial Training of Neural Networks, JMLR 2016"
    Hparams = Hparams
    needs = Needs(
        single_source="split", networks=("discriminator",), second_order="the discriminator, if grad_penalty > 0"
    )
    conditional = False

    step: Tensor

    def __init__(self, task: Task, hp: Any) -> None:
        super().__init__(task, hp)
        dim = self.backbone.dim
        hidden = [hp.mlp_width] * (hp.mlp_depth - 1)
        self.discriminator = mlp(dim, *hidden, self.n_domains, dropout=hp.mlp_dropout)
        learned = list(self.discriminator.parameters())
        if self.conditional:
            self.class_embeddings = nn.Embedding(task.n_classes, dim)
            learned += self.class_embeddings.parameters()
        betas = (hp.beta1, 0.9)
        self.generator = [*self.backbone.parameters(), *self.head.parameters()]
        self.add_optimizer("main", self.generator, hp.lr_g, hp.weight_decay_g, betas)
        self.add_optimizer("discriminator", learned, hp.lr_d, hp.weight_decay_d, betas)
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def update(self, batches: Sequence[Batch]) -> Numbers:
        batches = self.per_domain(batches)
        domain = domain_labels([len(x) for x, _ in batches], batches[0][0].device)
        x, y = self.gather(batches)
        self.step += 1
        d = self.hp.d_steps_per_g_step
        if int(self.step) % (1 + d) < d:
            return self.discriminator_step(x, y, domain)
        return self.generator_step(x, y, domain)

    def discriminator_step(self, x: Tensor, y: Tensor, domain: Tensor) -> Numbers:
        with torch.no_grad():
            z = self.features(x)
        loss = self.domain_loss(z, y, domain)
        self.optimizers["discriminator"].zero_grad()
        loss.backward()
        self.optimizers["discriminator"].step()
        return fetch_numbers({"disc_loss": loss})

    def generator_step(self, x: Tensor, y: Tensor, domain: Tensor) -> Numbers:
        z = self.features(x)
        loss = F.cross_entropy(self.classify(z), y) - self.hp.lambda_ * self.domain_loss(z, y, domain)
        self.optimizers["main"].zero_grad()
        loss.backward(inputs=self.generator)
        self.optimizers["main"].step()
        return fetch_numbers({"gen_loss": loss})

    def domain_loss(self, z: Tensor, y: Tensor, domain: Tensor) -> Tensor:
        """Return ℓ_D. In CDANN its cross-entropy is weighted by class."""
        if self.conditional:
            z = z + self.class_embeddings(y)
        if self.hp.grad_penalty > 0 and not z.requires_grad:
            z = z.requires_grad_()
        losses = F.cross_entropy(self.discriminator(z), domain, reduction="none")
        loss = (self.weights(y).to(losses) * losses).sum()
        if self.hp.grad_penalty > 0:
            (g,) = torch.autograd.grad(losses.sum(), z, create_graph=True)
            loss = loss + self.hp.grad_penalty * g.square().sum(1).mean()
        return loss

    def weights(self, y: Tensor) -> Tensor:
        """Return the weight of each image in the domain loss."""
        return widen(torch.ones_like(y)) / len(y)


class CDANN(DANN):
    """DANN with the input z + E[y] of D, for a learned embedding E of the classes.

    In the domain loss an image of class k has the weight 1/(N_k·K): N_k images of the class, K classes in the batch.
    """

    name = "cdann"
    paper = "Li et al., Deep Domain Generalization via Conditional Invariant Adversarial Networks, ECCV 2018"
    Hparams = ConditionalHparams
    needs = Needs(
        single_source="split",
        networks=("discriminator", "class embeddings"),
        second_order="the discriminator, if grad_penalty > 0",
    )
    conditional = True

    def weights(self, y: Tensor) -> Tensor:
        counts = (y[:, None] == torch.arange(self.task.n_classes, device=y.device)).sum(0)
        n_classes = y.amax() + 1 if self.hp.reference else (counts > 0).sum()
        return 1 / widen(counts[y] * n_classes)
