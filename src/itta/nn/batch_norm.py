"""Find and replace the batch normalisation of a network, and mix its stored statistics with those of the batch."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

Module = TypeVar("Module", bound=nn.Module)
Share = Callable[[int], float]
"""Number of images in the batch -> the share of the batch in the statistics, 0 to 1."""

NORMS = (BatchNorm, nn.GroupNorm, nn.LayerNorm)
CHUNK = 2**18  # values centred at a time: to copy a whole batch of large maps costs more than its moments


def batch_norms(module: nn.Module) -> dict[str, BatchNorm]:
    """Return the batch normalisation layers inside the module, by name."""
    return {name: m for name, m in module.named_modules() if isinstance(m, BatchNorm)}


def has_batch_norm(module: nn.Module) -> bool:
    return bool(batch_norms(module))


def reads_the_batch(module: nn.Module) -> bool:
    """Tell whether a batch normalisation inside the module uses batch statistics even in evaluation mode."""
    return any(
        isinstance(m, MixedBatchNorm) or (isinstance(m, BatchNorm) and m.running_mean is None) for m in module.modules()
    )


def norm_parameters(module: nn.Module, prefix: str = "") -> dict[str, nn.Parameter]:
    """Return the weights and biases of the normalisation layers inside the module, by name."""
    return {
        ".".join(part for part in (prefix, name, key) if part): p
        for name, m in module.named_modules()
        if isinstance(m, NORMS)
        for key, p in m.named_parameters(recurse=False)
    }


def use_batch_statistics(module: nn.Module) -> None:
    """Make batch normalisation inside the module use the statistics of each batch instead of stored ones."""
    for norm in batch_norms(module).values():
        norm.track_running_stats = False
        norm.running_mean = norm.running_var = None


def replace_batch_norms(module: nn.Module, make: Callable[[BatchNorm], Module]) -> dict[str, Module]:
    """Replace every batch normalisation inside the module by ``make(layer)``, and return the new layers by name."""
    made = {name: make(norm) for name, norm in batch_norms(module).items()}
    for name, new in made.items():
        parent, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(parent), leaf, new)
    return made


class MixedBatchNorm(nn.Module):
    """Normalise by (μ, v) = (1 − a)·stored + a·the batch's, with a = ``share``(images in the batch).

    Autograd sees μ and v as constants. The module wraps a layer in evaluation mode, so extras of that layer, such as
    timm's fused activation, still run. With ``track`` the mixture replaces the stored statistics.
    """

    def __init__(self, norm: BatchNorm, share: Share, track: bool = False) -> None:
        super().__init__()
        self.norm, self.share, self.track = norm, share, track

    def forward(self, x: Tensor) -> Tensor:
        stored = {name: self.norm.get_buffer(name) for name in ("running_mean", "running_var")}
        with torch.no_grad():
            share, moments = self.share(len(x)), channel_moments(x.to(stored["running_mean"].dtype))
            mixed = {name: torch.lerp(old, new, share) for (name, old), new in zip(stored.items(), moments)}
            if self.track:
                for name, old in stored.items():
                    old.copy_(mixed[name])
        return functional_call(self.norm, mixed, (x,))


def channel_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the mean squared deviation of each channel of [B, C, …].

    This is several times faster than var_mean, which does not vectorise over these dimensions, and as exact.

    >>> channel_moments(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    (tensor([2., 5.]), tensor([1., 0.]))
    """
    z = x.unsqueeze(2).flatten(2)  # [B, C, positions]
    mean = z.mean(2).mean(0)
    parts = z.split(max(1, CHUNK // z[0].numel()))
    deviation = torch.cat([torch.linalg.vector_norm(part - mean.unsqueeze(1), dim=2) for part in parts])  # [B, C]
    return mean, deviation.square().mean(0) / z.shape[2]


def mix_statistics(module: nn.Module, share: Share, track: bool = False) -> dict[str, MixedBatchNorm]:
    """Wrap every batch normalisation inside the module, in place, and return the wrappers by name."""
    return replace_batch_norms(module, lambda norm: MixedBatchNorm(norm, share, track))
