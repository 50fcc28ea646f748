"""Which parameters of a model move: functions from an adapter's copy of the model to named parameters."""

from torch import nn

from itta.algorithms.base import Algorithm
from itta.nn.batch_norm import BatchNorm, batch_norms

NORMS = (BatchNorm, nn.GroupNorm, nn.LayerNorm)


def norm_affine(model: Algorithm) -> dict[str, nn.Parameter]:
    """Weights and biases of the backbone's normalisation layers."""
    return {
        f"backbone.{name}.{key}": p
        for name, module in model.backbone.named_modules()
        if isinstance(module, NORMS)
        for key, p in module.named_parameters(recurse=False)
    }


def whole_backbone(model: Algorithm) -> dict[str, nn.Parameter]:
    return dict(model.backbone.named_parameters(prefix="backbone"))


def head(model: Algorithm) -> dict[str, nn.Parameter]:
    return dict(model.head.named_parameters(prefix="head"))


def use_batch_statistics(model: Algorithm) -> None:
    """Let batch normalisation read the statistics of each batch, and none stored."""
    for norm in batch_norms(model.backbone).values():
        norm.track_running_stats = False
        norm.running_mean = norm.running_var = None
