"""T3A. Test-Time Classifier Adjustment Module for Model-Agnostic Domain Generalization. Iwasawa, Matsuo, NeurIPS 2021.
https://openreview.net/forum?id=e_yvNqkJKAW

If all supports are kept (-1), the release drops one of each class by a wrong slice; here all are kept. Then only their
sum matters, so only the sum is stored, and memory does not grow with the stream.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from itta.adapters.base import Adapter, Needs
from itta.adapters.frozen import Frozen
from itta.adapters.supports import Supports, has_prototypes
from itta.errors import InputError
from itta.hparams import hp
from itta.models.trained import Trained


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

    def __init__(self, trained: Trained, hp: Any) -> None:
        super().__init__(trained, hp)
        if hp.supports < 1 and hp.supports != -1:
            raise InputError(f"supports must be at least 1, or -1 for all, got {hp.supports}.")
        head = self.model.head
        if not isinstance(head, nn.Linear) or not has_prototypes(head, self.model.backbone.dim):
            raise InputError(
                f"t3a needs the rows of a linear head on the features, and {self.model.origin} has no such head: "
                "choose another adapter."
            )
        self.supports = Supports(head, hp.supports)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        z = self.still.features(self.receive(x))
        self.supports.add(z, self.model.classify(z))
        return z @ self.supports.prototypes().T

    def frozen(self) -> nn.Module:
        found, prototypes = Frozen(self.name, self.model), self.supports.prototypes()
        head = nn.Linear(prototypes.shape[1], len(prototypes), bias=False).to(prototypes).requires_grad_(False)
        head.weight.copy_(prototypes)
        found.model.head = head
        return found

    def reset(self) -> None:
        self.supports.reset()

    def network(self) -> Trained:
        raise InputError("t3a changes only the classifier, not the network: choose another adapter.")

    def state(self) -> dict[str, Tensor]:
        return self.supports.state_dict()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.supports.load_state_dict(state)
