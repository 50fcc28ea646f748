"""T3A. Test-Time Classifier Adjustment Module for Model-Agnostic Domain Generalization. Iwasawa, Matsuo, NeurIPS 2021.
https://openreview.net/forum?id=e_yvNqkJKAW

If all supports are kept (-1), the release drops one of each class by a wrong slice; here all are kept. Then only their
sum matters, so only the sum is stored, and memory does not grow with the stream.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itta.adapters.base import Adapter, Needs
from itta.adapters.frozen import Frozen
from itta.algorithms.base import Algorithm
from itta.errors import InputError
from itta.functional.entropy import entropy
from itta.hparams import hp


@dataclass(frozen=True)
class Hparams:
    supports: int = hp(20, "M: for each class, keep this number of supports, those of the lowest entropy; -1 keeps all")


class T3A(Adapter):
    """S_k: the rows of the linear head and the features z so far that the head assigns to class k, ẑ = z/‖z‖.

    S_k keeps the M with the lowest entropy; c_k = Σ_{s∈S_k} ŝ / ‖Σ ŝ‖; the batch, added to S first, scores z·c_k.
    """

    name = "t3a"
    paper = (
        "Iwasawa and Matsuo, Test-Time Classifier Adjustment Module for Model-Agnostic Domain Generalization, "
        "NeurIPS 2021"
    )
    Hparams = Hparams
    needs = Needs(changes="class prototypes in place of the head")
    candidates = tuple({"supports": m} for m in (5, 20, 50, 100, -1))
    predicts = "after"

    def __init__(self, trained: Algorithm, hp: Any) -> None:
        super().__init__(trained, hp)
        if hp.supports < 1 and hp.supports != -1:
            raise InputError(f"supports must be at least 1, or -1 for all, got {hp.supports}.")
        head, dim = self.model.head, self.model.backbone.dim
        if not isinstance(head, nn.Linear) or head.in_features != dim:
            raise InputError(
                f"t3a needs the rows of a linear head on the features, and this model, trained with "
                f"{self.model.name!r}, has no such head: choose another adapter."
            )
        self.rows = head.weight
        slots = max(hp.supports, 1)
        self.kept = head.weight.new_zeros(head.out_features, slots, dim)  # normalised; with -1 their sum
        self.entropy = head.weight.new_zeros(head.out_features, slots)  # infinite in a free slot
        self.reset()

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        self.check(x)
        z = self.model.features(x)
        self.add(z)
        return z @ self.prototypes().T

    def prototypes(self) -> Tensor:
        """Return c_k, [classes, d]."""
        return F.normalize(self.kept.sum(1))

    def frozen(self) -> nn.Module:
        found = Frozen(self.name, self.model)
        found.model.head = nn.Linear(self.rows.shape[1], len(self.rows), bias=False).to(self.rows).requires_grad_(False)
        found.model.head.weight.copy_(self.prototypes())
        return found

    def add(self, z: Tensor) -> None:
        """Add features under the labels that the head predicts, and drop those with the highest entropy."""
        logits = self.model.classify(z)
        label, h, z = logits.argmax(1), entropy(logits), F.normalize(z)
        if self.hp.supports == -1:
            self.kept[:, 0].index_add_(0, label, z)
            return
        classes, slots = self.entropy.shape
        own = label == torch.arange(classes, device=z.device).unsqueeze(1)  # [C, B]
        pool = torch.cat([self.entropy, torch.where(own, h, torch.inf)], 1)  # [C, M + B]
        first = pool.argsort(dim=1, stable=True)[:, :slots]  # stable: features of other classes fill no free slot
        stays = torch.zeros_like(pool, dtype=torch.bool).scatter_(1, first, True)
        left, entered = ~stays[:, :slots], stays[:, slots:].nonzero()[:, 1]  # in each class as many leave as enter
        self.kept[left], self.entropy[left] = z[entered], h[entered]

    @torch.no_grad()
    def reset(self) -> None:
        self.kept.zero_()
        self.entropy.fill_(torch.inf)
        self.add(self.rows)

    def network(self) -> Algorithm:
        raise InputError("t3a changes only the classifier, not the network: choose another adapter.")

    def state_dict(self) -> dict[str, Tensor]:
        return {"kept": self.kept.clone(), "entropy": self.entropy.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.kept.copy_(state["kept"])
        self.entropy.copy_(state["entropy"])
