"""ARM, contextual. Adaptive Risk Minimization: Learning to Adapt to Domain Shift.
Zhang, Marklund, Dhawan, Gupta, Levine, Finn, NeurIPS 2021. https://arxiv.org/abs/2007.02931

In DomainBed the context network is missing from the optimiser by mistake and stays random. Here it learns;
``reference`` does as DomainBed. Predictions depend on the batch: images are grouped in the order they come.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itta.algorithms import base
from itta.algorithms.base import Algorithm, Batch, Logs, Needs, Task
from itta.hparams import hp, power


@dataclass(frozen=True)
class Hparams(base.Hparams):
    batch_size: int = hp(8, "images per source domain and step", small=(64, power(2, 3, 9, whole=True)))
    reference: bool = hp(False, "keep the context network at its random start, as DomainBed does")


class ARM(Algorithm):
    """min CE(f_φ(f_θ([x, c])), y), where the extra input channel c is the mean of k(x) over the images of a group.

    x is normalised for both networks. A group is batch_size images in a row, in training the batch of one domain. If
    batch_size does not divide the number of images, all images are one group.
    """

    name = "arm"
    paper = "Zhang et al., Adaptive Risk Minimization: Learning to Adapt to Domain Shift, NeurIPS 2021"
    Hparams = Hparams
    needs = Needs(networks=("context network",), batch_prediction=True)

    def __init__(self, task: Task, hp: Any) -> None:
        super().__init__(task, hp)
        self.backbone.widen(1)
        learned = [*self.backbone.parameters(), *self.head.parameters()]
        self.context = context_network(3)
        if not hp.reference:
            learned += self.context.parameters()
        self.context.requires_grad_(not hp.reference)
        self.add_optimizer("main", learned, hp.lr, hp.weight_decay)

    def objective(self, batches: Sequence[Batch]) -> tuple[Tensor, Logs]:
        x, y = self.gather(batches)
        loss = F.cross_entropy(self.predict(x), y)
        return loss, {"loss": loss}

    def inputs(self, x: Tensor) -> Tensor:
        size = self.hp.batch_size if len(x) % self.hp.batch_size == 0 else len(x)
        z = self.backbone.normalise(x)  # k reads the images as the backbone does
        maps = self.context[:-1](z).unflatten(0, (-1, size)).mean(1)  # [groups, 64, H, W]
        context = self.context[-1](maps)  # linear, so it may come after the mean: one convolution per group
        return torch.cat([x, context.repeat_interleave(size, 0)], 1)


def context_network(n_in: int) -> nn.Sequential:
    """Build k, a network from images to one channel at full resolution."""
    return nn.Sequential(
        nn.Conv2d(n_in, 64, 5, padding=2), nn.BatchNorm2d(64), nn.ReLU(),
        nn.Conv2d(64, 64, 5, padding=2), nn.BatchNorm2d(64), nn.ReLU(),
        nn.Conv2d(64, 1, 5, padding=2),
    )  # fmt: skip
