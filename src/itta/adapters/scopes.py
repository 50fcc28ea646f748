"""Which parameters of a model move: functions from an adapter's copy of the model to named parameters."""

from torch import nn

from itta.algorithms.base import Algorithm
from itta.nn.batch_norm import norm_parameters


def norm_affine(model: Algorithm) -> dict[str, nn.Parameter]:
    """Weights and biases of the backbone's normalisation layers."""
    return norm_parameters(model.backbone, "backbone")


def whole_backbone(model: Algorithm) -> dict[str, nn.Parameter]:
    return dict(model.backbone.named_parameters(prefix="backbone"))


def head(model: Algorithm) -> dict[str, nn.Parameter]:
    return dict(model.head.named_parameters(prefix="head"))
