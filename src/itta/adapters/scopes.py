"""Scopes: functions that return the parameters of a model, by name, that an adapter changes."""

from torch import nn

from itta.models.trained import Trained
from itta.nn.batch_norm import norm_parameters


def norm_affine(model: Trained) -> dict[str, nn.Parameter]:
    """Return weights and biases of the backbone's normalisation layers."""
    return norm_parameters(model.backbone, "backbone")


def whole_backbone(model: Trained) -> dict[str, nn.Parameter]:
    """Return all parameters of the backbone."""
    return dict(model.backbone.named_parameters(prefix="backbone"))


def head(model: Trained) -> dict[str, nn.Parameter]:
    """Return the parameters of the head."""
    return dict(model.head.named_parameters(prefix="head"))
