"""The present prediction of an adapter as a module that does not learn: images [B, 3, H, W] in [0, 1] to logits."""

import copy

from torch import Tensor, nn

from itta.adapters.base import not_fixed
from itta.algorithms.base import Algorithm
from itta.errors import InputError
from itta.functional.entropy import log_mean_probability
from itta.models.trained import frozen_copy
from itta.nn.batch_norm import reads_the_batch


class Frozen(nn.Module):
    """A copy of a model, with the blocks that an adapter added. The model must be a fixed function of one image."""

    def __init__(self, name: str, model: Algorithm, theta: nn.ModuleDict | None = None) -> None:
        super().__init__()
        if model.needs.batch_prediction:
            who = f"a model trained with {model.name!r}"
            raise InputError(
                f"{who} cannot be frozen: its prediction for an image depends on the rest of the batch. "
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


class Averaged(Frozen):
    """The mean of the predictions without and with the added blocks. Both share the layers before the first of them."""

    def forward(self, x: Tensor) -> Tensor:
        backbone, first = self.model.backbone, next(iter(self.theta))
        z = backbone.until(first, self.model.inputs(x))
        features = backbone.resume(first, z), backbone.resume(first, z, self.adapt_block)
        return log_mean_probability([self.model.classify(f) for f in features])
