"""Source: the trained model as it is. It is the baseline of all test-time methods."""

import torch
from torch import Tensor, nn

from itta.adapters.base import Adapter
from itta.adapters.frozen import Frozen


class Source(Adapter):
    """Predict f_φ(f_θ(x)), and learn nothing."""

    name = "source"
    paper = "none: the trained model as it is"
    predicts = "before"

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return self.still.predict(self.receive(x))

    def frozen(self) -> nn.Module:
        return Frozen(self.name, self.model)
