"""A second opinion from inside a network: a linear classifier on the mean output of the last block but one.

Our own. That block knows less of the sources' styles than the features do. Where the reader and the model disagree more
than on the sources, the model is often wrong, also if it is sure.
"""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from itta.errors import InputError
from itta.nn.backbone import Backbone


class EarlyReader(NamedTuple):
    weight: Tensor  # [C, d]
    bias: Tensor  # [C]

    def scores(self, z: Tensor) -> Tensor:
        """Return the scores of the classes, [B, C], which have no scale: they are no logits."""
        if z.shape[1] != self.weight.shape[1]:
            raise InputError(
                f"the model's early reader reads {self.weight.shape[1]} features, and its last block but one gives "
                f"{z.shape[1]}: copy the model's directory again, or train it again."
            )
        return F.linear(z, self.weight, self.bias)


class EarlyFeatures:
    """A callback after each block that keeps what the reader reads, of the latest batch; None if there is one block."""

    def __init__(self, backbone: Backbone) -> None:
        self.block = backbone.block_names[-2] if len(backbone.block_names) > 1 else None
        self.latest: Tensor | None = None  # [B, d] on the CPU

    def __call__(self, block: str, z: Tensor) -> Tensor:
        """Keep the mean over positions, of maps [B, d, H, W] or of tokens [B, n, d]."""
        if block == self.block:
            means = z.detach().mean((2, 3)) if z.ndim == 4 else z.detach().flatten(1, -2).mean(1)
            self.latest = means.float().cpu()
        return z
