"""The learning rate along a training: a linear rise, then constant, or a cosine that ends at zero."""

import math

from torch.optim import Optimizer

from itta.settings import Schedule


def learning_rate_factor(schedule: Schedule, step: int, steps: int, warmup: int = 0) -> float:
    """Return the share of the learning rate that a step gets; the first step is 0.

    The rise over the first ``warmup`` steps: Goyal et al., 2017, https://arxiv.org/abs/1706.02677. The cosine: SGDR,
    Loshchilov and Hutter, ICLR 2017, https://arxiv.org/abs/1608.03983, without restarts.

    >>> [round(learning_rate_factor("cosine", step, 4), 3) for step in range(5)]
    [1.0, 0.854, 0.5, 0.146, 0.0]
    >>> [round(learning_rate_factor("constant", step, 9, warmup=4), 3) for step in range(5)]
    [0.2, 0.4, 0.6, 0.8, 1.0]
    """
    rise = min(1.0, (step + 1) / (warmup + 1))
    return rise if schedule == "constant" else rise * (1 + math.cos(math.pi * step / steps)) / 2


def scale_learning_rate(optimizer: Optimizer, factor: float) -> None:
    """Set the learning rate of a step to a share of the one that the optimiser was made with."""
    for group in optimizer.param_groups:
        group["lr"] = factor * group.setdefault("initial_lr", group["lr"])
