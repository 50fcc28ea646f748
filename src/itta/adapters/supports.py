"""Class prototypes as T3A builds them: from the rows of a linear head, and from features that the head is sure of."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itta.functional.entropy import entropy


class Supports:
    """Features by the class that a linear head gives them; of each class those of the lowest entropy stay."""

    def __init__(self, head: nn.Linear, most: int) -> None:
        """Keep ``most`` features of each class; -1 keeps all, as their sum."""
        self.head, self.most = head, most
        slots = max(most, 1)
        self.kept = head.weight.new_zeros(head.out_features, slots, head.in_features)  # normalised; for -1 their sum
        self.entropy = head.weight.new_zeros(head.out_features, slots)  # infinite where a slot is free
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        self.kept.zero_()
        self.entropy.fill_(torch.inf)
        self.add(self.head.weight, self.head(self.head.weight))

    def add(self, z: Tensor, logits: Tensor) -> None:
        """Take the features in under the head's labels, and let go of the least sure."""
        label, h, z = logits.argmax(1), entropy(logits), F.normalize(z)
        if self.most == -1:
            self.kept[:, 0].index_add_(0, label, z)
            return
        classes, slots = self.entropy.shape
        own = label == torch.arange(classes, device=z.device).unsqueeze(1)  # [C, B]
        pool = torch.cat([self.entropy, torch.where(own, h, torch.inf)], 1)  # [C, M + B]
        first = pool.argsort(dim=1, stable=True)[:, :slots]  # stable: those of other classes fill no free slot
        stays = torch.zeros_like(pool, dtype=torch.bool).scatter_(1, first, True)
        left, entered = ~stays[:, :slots], stays[:, slots:].nonzero()[:, 1]  # in each class as many leave as enter
        self.kept[left], self.entropy[left] = z[entered], h[entered]

    def prototypes(self) -> Tensor:
        """c_k, [classes, d]."""
        return F.normalize(self.kept.sum(1))

    def state_dict(self) -> dict[str, Tensor]:
        return {"kept": self.kept.clone(), "entropy": self.entropy.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.kept.copy_(state["kept"])
        self.entropy.copy_(state["entropy"])


def has_prototypes(head: nn.Module, dim: int) -> bool:
    """Whether the head's rows can stand for classes: a linear head on the features themselves."""
    return isinstance(head, nn.Linear) and head.in_features == dim
