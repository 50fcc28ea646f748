"""The moving average of a network's weights along a training.

Averaged weights do better than the last ones on domains that training never saw, and vary less between seeds:
Arpit et al., Ensemble of Averages: Improving Model Selection and Boosting Performance in Domain Generalization,
NeurIPS 2022, https://arxiv.org/abs/2110.10832.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class AveragedWeights:
    """w̄ ← d·w̄ + (1 − d)·w after every step t, with d = min(decay, t/(t + 10)): the first weights are soon forgotten.

    Parameters and buffers are averaged. Tensors of whole numbers are copied.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.tensors = {name: t.detach().clone() for name, t in module.state_dict().items()}

    @torch.no_grad()
    def add(self, module: nn.Module, step: int) -> None:
        """Take in the weights after a step; the first step is 1."""
        share = 1 - min(self.decay, step / (step + 10))
        now = module.state_dict()
        moving = [name for name, t in self.tensors.items() if t.is_floating_point()]
        torch._foreach_lerp_([self.tensors[n] for n in moving], [now[n] for n in moving], share)
        for name in self.tensors.keys() - set(moving):
            self.tensors[name].copy_(now[name])

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from the tensors of an earlier average."""
        for name, own in self.tensors.items():
            own.copy_(tensors[name])


@contextmanager
def using_weights(module: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Give the module other weights inside the ``with``, and its own back afterwards."""
    own = {name: t.clone() for name, t in module.state_dict().items()}
    module.load_state_dict(tensors)
    try:
        yield
    finally:
        module.load_state_dict(own)
