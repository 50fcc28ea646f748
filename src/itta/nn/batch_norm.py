"""Batch normalisation whose statistics are partly stored and partly the batch's."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

Share = Callable[[int], float]
"""Images in the batch -> how much of the statistics they give, 0 to 1."""


CHUNK = 2**18  # values centred at a time: a copy of a whole batch of large maps costs more than its moments


class MixedBatchNorm(nn.Module):
    """(μ, v) = (1 − a)·stored + a·the batch's, where a = ``share`` (images in the batch); constants to autograd.

    It wraps a layer in evaluation mode, so what that does beyond normalising, such as timm's fused activation, it still
    does. With ``track`` the mixture becomes what is stored.
    """

    def __init__(self, norm: BatchNorm, share: Share, track: bool = False) -> None:
        super().__init__()
        self.norm, self.share, self.track = norm, share, track

    def forward(self, x: Tensor) -> Tensor:
        stored = {name: self.norm.get_buffer(name) for name in ("running_mean", "running_var")}
        with torch.no_grad():
            share, moments = self.share(len(x)), channel_moments(x)
            mixed = {name: torch.lerp(old, new, share) for (name, old), new in zip(stored.items(), moments)}
            if self.track:
                for name, old in stored.items():
                    old.copy_(mixed[name])
        return functional_call(self.norm, mixed, (x,))


def channel_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and mean squared deviation of each channel of [B, C, …].

    Several times faster than var_mean, which does not vectorise over these dimensions, and no less exact.

    >>> channel_moments(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    (tensor([2., 5.]), tensor([1., 0.]))
    """
    z = x.unsqueeze(2).flatten(2)  # [B, C, positions]
    mean = z.mean(2).mean(0)
    parts = z.split(max(1, CHUNK // z[0].numel()))
    deviation = torch.cat([torch.linalg.vector_norm(part - mean.unsqueeze(1), dim=2) for part in parts])  # [B, C]
    return mean, deviation.square().mean(0) / z.shape[2]


def mix_statistics(module: nn.Module, share: Share, track: bool = False) -> dict[str, MixedBatchNorm]:
    """Wrap, in place, every batch normalisation inside the module; return the wrappers by name."""
    found = {name: m for name, m in module.named_modules() if isinstance(m, BatchNorm)}
    mixed = {name: MixedBatchNorm(norm, share, track) for name, norm in found.items()}
    for name, norm in mixed.items():
        parent, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(parent), leaf, norm)
    return mixed
