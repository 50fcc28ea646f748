"""Mean and covariance of a network's features, averaged while it trains."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from itta.errors import InputError
from itta.functional.moments import Moments


class RunningMoments(nn.Module):
    """A running average over about the last ``window`` batches. The first ``window`` batches have equal weights.

    The result is exactly the moments of all images so far, with weights that fall with age. The window is short because
    the network changes meanwhile. All state is in buffers, so a checkpoint holds it.
    """

    mean: Tensor
    covariance: Tensor
    fourth: Tensor
    steps: Tensor

    def __init__(self, dim: int, window: int) -> None:
        super().__init__()
        if window < 1:
            raise InputError(f"moments_window must be at least 1 step, got {window}.")
        self.window = window
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("covariance", torch.zeros(dim, dim))
        self.register_buffer("fourth", torch.zeros(()))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "RunningMoments":
        """Move or convert the moments. The count of steps stays on the host, which reads it without waiting."""
        steps = self.steps
        super()._apply(fn, recurse)
        self._buffers["steps"] = steps
        return self

    @torch.no_grad()
    def update(self, z: Tensor) -> None:
        """Add the features of a batch, [B, dim]."""
        self.steps += 1
        share = 1 / min(int(self.steps), self.window)
        mean = z.mean(0)
        apart, centred = mean - self.mean, z - mean
        between = (1 - share) * torch.outer(apart, apart)  # the variance that comes from the change of the mean
        self.mean.lerp_(mean, share)
        self.covariance.lerp_(centred.T @ centred / len(z) + between, share)
        self.fourth.lerp_((z - self.mean).square().sum(1).square().mean(), share)

    def moments(self) -> Moments:
        return Moments(self.mean, self.covariance, self.fourth)
