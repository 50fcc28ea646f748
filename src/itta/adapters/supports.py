"""Class prototypes of T3A: built from the rows of a linear head, and from features with confident predictions."""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itta.functional.entropy import entropy


class Supports:
    """Features, sorted by the class that a linear head predicts. Each class keeps those of the lowest entropy."""

    def __init__(self, head: nn.Linear, most: int) -> None:
        """Keep ``most`` features of each class; -1 keeps all, as their sum."""
        self.head, self.most = head, most
        slots = max(most, 1)
        self.kept = head.weight.new_zeros(head.out_features, slots, head.in_features)  # normalised; with -1 their sum
        self.entropy = head.weight.new_zeros(head.out_features, slots)  # infinite in a free slot
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        self.kept.zero_()
        self.entropy.fill_(torch.inf)
        weight = self.head.weight
        self.add(weight, F.linear(weight, weight, self.head.bias))  # not a call of the head: a guard counts its calls

    def add(self, z: Tensor, logits: Tensor) -> None:
        """Add features under the labels that the head predicts, and drop those with the highest entropy."""
        label, h = logits.argmax(1), entropy(logits)
        if self.most == -1:
            self.kept[:, 0].index_add_(0, label, F.normalize(z))
            return
        if z.device.type == "cpu" and not (h < self.entropy.amax(1)[label]).any():
            return  # as in most batches of a long stream; the host need not wait to know it
        z = F.normalize(z)
        classes, slots = self.entropy.shape
        own = label == torch.arange(classes, device=z.device).unsqueeze(1)  # [C, B]
        pool = torch.cat([self.entropy, torch.where(own, h, torch.inf)], 1)  # [C, M + B]
        first = pool.argsort(dim=1, stable=True)[:, :slots]  # stable: features of other classes fill no free slot
        stays = torch.zeros_like(pool, dtype=torch.bool).scatter_(1, first, True)
        self.replace(label, stays[:, :slots], stays[:, slots:], z, h)

    def replace(self, label: Tensor, stays: Tensor, enters: Tensor, z: Tensor, h: Tensor) -> None:
        """Let some images enter the slots that others leave: ``stays`` [C, M], ``enters`` [C, B].

        How many enter is not known to the host, which would have to wait for the device. So every image is written: an
        image that does not enter repeats the first that does. If none enters, one slot is overwritten with itself.
        """
        leaving = stays.byte().argsort(dim=1, stable=True)  # [C, M], free slots first
        rank = enters.cumsum(1).gather(0, label.unsqueeze(0))[0] - 1  # among the images that enter the same class
        enters = enters.any(0)
        image = torch.where(enters, torch.arange(len(z), device=z.device), enters.byte().argmax())
        row = label[image]
        slot = leaving[row, rank[image].clamp(min=0)]
        some = enters.any()
        self.kept[row, slot] = torch.where(some, z[image], self.kept[row, slot])
        self.entropy[row, slot] = torch.where(some, h[image], self.entropy[row, slot])

    def move(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Move the features to the device of the head; the head moves with its model."""
        self.kept, self.entropy = fn(self.kept), fn(self.entropy)

    def prototypes(self) -> Tensor:
        """Return c_k, [classes, d]."""
        return F.normalize(self.kept.sum(1))

    def state_dict(self) -> dict[str, Tensor]:
        return {"kept": self.kept.clone(), "entropy": self.entropy.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.kept.copy_(state["kept"])
        self.entropy.copy_(state["entropy"])


def has_prototypes(head: nn.Module, dim: int) -> bool:
    """Tell whether the rows of the head are class prototypes: the head must be linear, on the features."""
    return isinstance(head, nn.Linear) and head.in_features == dim
