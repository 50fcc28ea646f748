"""The present prediction of an adapter as a module that does not learn: images [B, 3, H, W] in [0, 1] to logits."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itta.adapters.base import not_fixed
from itta.errors import InputError
from itta.functional.entropy import log_mean_probability
from itta.functional.preference import prefer
from itta.models.trained import Trained, frozen_copy
from itta.nn.batch_norm import reads_the_batch


class Frozen(nn.Module):
    """A copy of a model, with the blocks that an adapter added. The model must be a fixed function of one image."""

    def __init__(self, name: str, model: Trained, theta: nn.ModuleDict | None = None) -> None:
        super().__init__()
        if model.batch_prediction:
            raise InputError(
                f"{model.origin} cannot be frozen: its prediction for an image depends on the rest of the batch. "
                "Train with another algorithm."
            )
        if reads_the_batch(model.backbone):
            raise not_fixed(name, "its batch normalisation uses the statistics of each batch")
        self.model = frozen_copy(model)
        self.theta = copy.deepcopy(nn.ModuleDict() if theta is None else theta).requires_grad_(False)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.model.classify(self.model.features(x, self.adapt_block))

    def adapt_block(self, block: str, z: Tensor) -> Tensor:
        return self.theta[block](z) if block in self.theta else z


class Combined(nn.Module):
    """The mean of several answers: without the added blocks, with them, and by prototypes; then a bias is added.

    The prototypes' answer has the given weight, the others have weight 1. The first answer is preferred by the margin.
    """

    def __init__(
        self, frozen: Frozen, temperature: float, prototypes: Tensor | None, weight: float, bias: Tensor, margin: float
    ) -> None:
        super().__init__()
        self.frozen, self.temperature, self.weight, self.margin = frozen, temperature, weight, margin
        like = next(frozen.parameters())
        self.bias: Tensor
        self.prototypes: Tensor | None
        self.register_buffer("bias", bias.to(like))
        self.register_buffer("prototypes", None if prototypes is None else prototypes.to(like))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        model, theta, n = self.frozen.model, self.frozen.theta, x.shape[0]

        def run_both(block: str, z: Tensor) -> Tensor:
            """From the first added block on, run the batch without the added blocks and, behind it, with them."""
            return torch.cat([z[:n], theta[block](z[-n:])]) if block in theta else z

        features = model.features(x, run_both)
        parts = [features[:n], features[n:]] if len(theta) > 0 else [features]
        plain, answers = parts[0], [model.classify(f) / self.temperature for f in parts]
        weights = [1.0] * len(answers)
        if self.prototypes is not None:
            answers.append(F.normalize(plain) @ self.prototypes.T)
            weights.append(self.weight)
        return prefer(log_mean_probability(answers, weights) + self.bias, answers[0], self.margin)
