"""Mixup between domains. mixup: Beyond Empirical Risk Minimization. Zhang, Cisse, Dauphin, Lopez-Paz, ICLR 2018.
https://arxiv.org/abs/1710.09412. Images are mixed between domains, as in DomainBed.

All pairs of domains share one pass. The code of the ITTA paper drew α from 10^U(−1, −1) by mistake, so α was always
0.1. We search DomainBed's corrected range; set mixup_alpha=0.1 for theirs. With one source domain, each image is mixed
with another image of its batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from itta.algorithms import base
from itta.algorithms.base import Algorithm, Batch, Logs, Needs
from itta.functional.domains import domain_means
from itta.functional.transfers import send
from itta.hparams import hp, power
from itta.nn.style_mixing import draw_beta


@dataclass(frozen=True)
class Hparams(base.Hparams):
    mixup_alpha: float = hp(0.2, "α of Beta(α, α), which draws the share λ of each pair", power(10, -1, 1))


class MixupDraw(NamedTuple):
    order: Tensor  # [S], a cyclic order of the domains: each is paired with the next
    lam: Tensor  # [S], one share for each pair


class Mixup(Algorithm):
    """x̃ = λx_i + (1−λ)x_j for S pairs (i, j) of domains, neighbours in a random cyclic order; images pair by position.

    min ⟨λ·CE(o(x̃), y_i) + (1−λ)·CE(o(x̃), y_j)⟩ over pairs, with one λ ~ Beta(α, α) per pair.
    """

    name = "mixup"
    paper = "Zhang et al., mixup: Beyond Empirical Risk Minimization, ICLR 2018"
    Hparams = Hparams
    needs = Needs(single_source="shuffle")

    def objective(self, batches: Sequence[Batch]) -> tuple[Tensor, Logs]:
        batches = self.per_domain(batches)
        draw = draw_mixup(len(batches), self.hp.mixup_alpha)
        first = [batches[i] for i in draw.order.tolist()]
        second = [*first[1:], first[0]]
        if len(first) == 1 and self.hp.single_source == "split":
            second = [shuffled(first[0])]
        sizes = [min(len(a), len(b)) for (_, a), (_, b) in zip(first, second)]
        x_i, y_i = joined(first, sizes)
        x_j, y_j = joined(second, sizes)
        lam = send(draw.lam.repeat_interleave(torch.tensor(sizes)), x_i.device, x_i.dtype)
        share = lam.view(-1, 1, 1, 1)
        logits = self.predict(share * x_i + (1 - share) * x_j)
        losses = [F.cross_entropy(logits, y, reduction="none") for y in (y_i, y_j)]
        loss = domain_means(lam * losses[0] + (1 - lam) * losses[1], sizes).mean()
        return loss, {"loss": loss}


def draw_mixup(n_domains: int, alpha: float) -> MixupDraw:
    return MixupDraw(torch.randperm(n_domains), draw_beta(n_domains, alpha))


def shuffled(batch: Batch) -> Batch:
    order = torch.randperm(len(batch[0]), device=batch[0].device)
    return batch[0][order], batch[1][order]


def joined(batches: Sequence[Batch], sizes: Sequence[int]) -> Batch:
    """Join the first images of each batch into one batch."""
    parts = [(x[:n], y[:n]) for (x, y), n in zip(batches, sizes)]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
