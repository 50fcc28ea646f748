"""The trained model as adapters see it, whoever trained it."""

import copy
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from itta.nn.backbone import After, Backbone, keep
from itta.nn.style_bank import StyleBank


class Trained(Protocol):
    """A network with named blocks and a head, and the statistics of its source data; each statistic is optional."""

    backbone: Backbone
    hp: Any
    style_bank: StyleBank | None
    fisher: dict[str, Tensor] | None  # by parameter, of normalisation layers
    differences: dict[str, Tensor] | None  # "low" and "high" of the inputs of f_w, [dim] each

    confusions: dict[str, Tensor] | None  # "mean" answers [C, C], "temperature", class "prior"

    def inputs(self, x: Tensor) -> Tensor:
        """Turn images into the input of the backbone."""

    def features(self, x: Tensor, after: After = keep) -> Tensor:
        """Turn images into features [B, dim]."""

    def classify(self, z: Tensor) -> Tensor:
        """Turn features into logits."""

    def predict(self, x: Tensor) -> Tensor:
        """Turn images into logits [B, classes]."""


Model = TypeVar("Model", bound=nn.Module)


@torch.inference_mode(False)  # tensors that are made in inference mode can never learn
def frozen_copy(trained: Model) -> Model:
    """Copy a model for inference: without optimisers and gradients, in evaluation mode."""
    optimizers = getattr(trained, "optimizers", None)
    model = copy.deepcopy(trained, memo={id(optimizers): {}} if optimizers is not None else None)
    return model.eval().requires_grad_(False)
