"""Batch normalisation with statistics that follow a stream slowly, and a switch that lets a pass update them.

`RobustNorm` is the robust batch normalisation of RoTTA: Robust Test-Time Adaptation in Dynamic Scenarios.
Yuan, Xie, Li, CVPR 2023. https://arxiv.org/abs/2303.13899
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itta.nn.batch_norm import BatchNorm, replace_batch_norms


class RobustNorm(nn.Module):
    """In training, μ ← (1−α)·μ + α·mean(x) and σ² ← (1−α)·σ² + α·var(x), and the new μ, σ² normalise x.

    Gradients flow through mean(x) and var(x); var is the biased variance. In evaluation the stored μ, σ² normalise x.
    The module replaces a batch normalisation and keeps its weight and bias under the same names.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, norm: BatchNorm, share: float) -> None:
        super().__init__()
        assert norm.running_mean is not None
        assert norm.running_var is not None
        self.eps, self.share = norm.eps, share
        self.register_parameter("weight", norm.weight)
        self.register_parameter("bias", norm.bias)
        self.register_buffer("running_mean", norm.running_mean.clone())
        self.register_buffer("running_var", norm.running_var.clone())
        # timm has a batch normalisation layer that also applies dropout and an activation
        self.after = nn.Sequential(*[getattr(norm, part) for part in ("drop", "act") if hasattr(norm, part)])
        self.train(norm.training)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            z = F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
            return self.after(z)
        x = x.to(self.running_mean.dtype)  # statistics are in float32, whatever the precision of the network
        var, mean = torch.var_mean(x, [0, *range(2, x.ndim)], correction=0)
        mean, var = self.running_mean.lerp(mean, self.share), self.running_var.lerp(var, self.share)
        self.running_mean.copy_(mean.detach())
        self.running_var.copy_(var.detach())
        scale = (var + self.eps).rsqrt()
        scale = scale if self.weight is None else scale * self.weight
        shift = -mean * scale if self.bias is None else self.bias - mean * scale
        shape = (-1, *[1] * (x.ndim - 2))
        return self.after(x * scale.view(shape) + shift.view(shape))


def use_robust_norm(module: nn.Module, share: float) -> None:
    """Replace every batch normalisation inside the module by a `RobustNorm`."""
    replace_batch_norms(module, lambda norm: RobustNorm(norm, share))


def statistics(module: nn.Module, prefix: str = "") -> dict[str, Tensor]:
    """Return the running means and variances inside the module, by name."""
    return {name: b for name, b in module.named_buffers(prefix) if name.endswith(("running_mean", "running_var"))}


@contextmanager
def learning_statistics(module: nn.Module) -> Iterator[None]:
    """Set the batch normalisation of a module, and nothing else, to training mode inside the ``with``.

    The module itself is in evaluation mode, before and after.
    """
    norms = [m for m in module.modules() if isinstance(m, (BatchNorm, RobustNorm))]
    for norm in norms:
        norm.training = True  # the layer alone: layers inside it keep their mode
    try:
        yield
    finally:
        for norm in norms:
            norm.training = False
