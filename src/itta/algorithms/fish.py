"""Fish. Gradient Matching for Domain Generalization.
Shi, Seely, Torr, Siddharth, Hannun, Usunier, Synnaeve, ICLR 2022. https://arxiv.org/abs/2104.09937

As in DomainBed, the order of the domains is fixed (``fish_shuffle`` draws it), and the Adam of the fast weights keeps
its moments between updates. The network's own weights serve as the fast weights and are then moved back, so there is no
second network. DomainBed logs the last domain's loss; we log the mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from itta.algorithms import base
from itta.algorithms.base import Algorithm, Batch, Needs, Numbers
from itta.functional.transfers import fetch_numbers
from itta.hparams import choice, hp


@dataclass(frozen=True)
class Hparams(base.Hparams):
    meta_lr: float = hp(0.5, "share of the way that the slow weights follow the fast ones", choice(0.05, 0.1, 0.5))
    fish_shuffle: bool = hp(False, "visit the domains in random order, as the authors do")


class Fish(Algorithm):
    """θ̃ ← θ; for each domain e in turn: θ̃ ← Adam step on L_e(θ̃); then θ ← θ + ε(θ̃ − θ)."""

    name = "fish"
    paper = "Shi et al., Gradient Matching for Domain Generalization, ICLR 2022"
    Hparams = Hparams
    needs = Needs(single_source="split")

    def update(self, batches: Sequence[Batch]) -> Numbers:
        batches = self.per_domain(batches)
        order = torch.randperm(len(batches)).tolist() if self.hp.fish_shuffle else range(len(batches))
        weights = [t for t in self.state_dict().values() if t.is_floating_point()]  # and the statistics of BN
        slow = [t.clone() for t in weights]
        losses = []
        for e in order:
            x, y = batches[e]
            loss = F.cross_entropy(self.predict(x), y)
            self.optimizers["main"].zero_grad()
            loss.backward()
            self.optimizers["main"].step()
            losses.append(loss.detach())
        for fast, start in zip(weights, slow):
            fast.copy_(start.lerp_(fast, self.hp.meta_lr))
        return fetch_numbers({"loss": torch.stack(losses).mean()})
