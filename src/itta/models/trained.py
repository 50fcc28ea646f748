"""The trained model as adapters see it, whoever trained it."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from itta.models.stand_ins import StandIns
from itta.nn.backbone import After, Backbone, keep
from itta.nn.freed_memory import keep_freed_memory
from itta.nn.inference_copy import fast_copy
from itta.nn.style_bank import StyleBank

ViewKind = Literal["mixstyle", "noise"]


@dataclass(frozen=True)
class SecondViews:
    """How the training drew the second view of an image; a model that never had one gets MixStyle's default."""

    kind: ViewKind = "mixstyle"
    alpha: float = 0.1  # of MixStyle
    sigma: float = 1.0  # of the noise


class Trained(nn.Module):
    """A network with named blocks and a head, and the statistics of its source data; each statistic is optional.

    Adapters rely on this class and on nothing else. An `Algorithm` is one, and `itta.wrap` makes one of any network.
    """

    name: ClassVar[str]  # the training method, or "wrapped"
    backbone: Backbone
    head: nn.Module  # features [B, dim] to logits
    second_views = SecondViews()
    batch_prediction = False  # whether a prediction depends on the other images of its batch

    def __init__(self, classes: tuple[str, ...], image_size: int) -> None:
        super().__init__()
        keep_freed_memory()
        self.classes, self.image_size = classes, image_size  # names in the order of the logits; pixels on each side
        self.about: Mapping[str, Any] = {}  # how it was made: its trial and its steps, for a file
        self.style_bank: StyleBank | None = None
        self.fisher: dict[str, Tensor] | None = None  # by parameter, of normalisation layers
        self.differences: dict[str, Tensor] | None = None  # "low" and "high" of the inputs of f_w, [dim] each
        self.confusions: dict[str, Tensor] | None = None  # "mean" answers [C, C], "temperature", class "prior"
        self.stand_ins: StandIns | None = None  # how right the answers to damaged source images were

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @property
    def origin(self) -> str:
        """Where the model comes from, for messages."""
        return f"a model trained with {self.name!r}"

    def describe(self) -> dict[str, Any]:
        """Return the settings of the model as plain values."""
        raise NotImplementedError

    def inputs(self, x: Tensor) -> Tensor:
        """Turn images into the backbone's input. A method that adds a channel overrides this."""
        return x

    def features(self, x: Tensor, after: After = keep) -> Tensor:
        """Turn images into features [B, dim]."""
        return self.backbone(self.inputs(x), after)

    def classify(self, z: Tensor) -> Tensor:
        """Turn features into logits, as in prediction."""
        return self.head(z)

    def predict(self, x: Tensor) -> Tensor:
        """Turn images into logits [B, classes]."""
        return self.classify(self.features(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.predict(x)


Model = TypeVar("Model", bound=nn.Module)


def with_fast_backbone(model: Trained) -> Trained:
    """Return the model with a fast copy of its backbone. Head, statistics and settings are the model's own."""
    found = copy.copy(model)
    found._modules = {**model._modules, "backbone": fast_copy(model.backbone)}
    return found


@torch.inference_mode(False)  # tensors that are made in inference mode can never learn
def frozen_copy(trained: Model) -> Model:
    """Copy a model for inference: without optimisers and gradients, in evaluation mode."""
    optimizers = getattr(trained, "optimizers", None)
    model = copy.deepcopy(trained, memo={id(optimizers): {}} if optimizers is not None else None)
    return model.eval().requires_grad_(False)
