"""A training method of your own: label smoothing on top of ERM.

Run: python examples/own_algorithm.py, or from the command line, from this directory:
itta train emoji --algorithm own_algorithm:SmoothERM --target noto-mono --set smoothing=0.2 --out runs/smooth
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from itta.algorithms import Algorithm, Task, base
from itta.algorithms.base import Batch, Logs
from itta.hparams import default, hp, uniform
from itta.nn.small_cnn import SmallCNN


@dataclass(frozen=True)
class Hparams(base.Hparams):
    smoothing: float = hp(0.1, "share of the label that is spread over all classes", uniform(0, 0.3))


class SmoothERM(Algorithm):
    """min CE(f_φ(f_θ(x)), (1 − s)·y + s/C)."""

    name = "smooth_erm"
    paper = "Szegedy et al., Rethinking the Inception Architecture for Computer Vision, CVPR 2016"
    Hparams = Hparams

    def objective(self, batches: Sequence[Batch]) -> tuple[Tensor, Logs]:
        x, y = self.gather(batches)
        loss = F.cross_entropy(self.predict(x), y, label_smoothing=self.hp.smoothing)
        return loss, {"loss": loss}


if __name__ == "__main__":
    torch.manual_seed(0)
    task = Task(classes=("dark", "light"), domains=("here",), image_size=16, make_backbone=SmallCNN)
    algorithm = SmoothERM(task, default(Hparams, lr="1e-3"))
    y = torch.arange(32) % 2
    x = 0.2 + 0.5 * y.view(-1, 1, 1, 1) + 0.1 * torch.rand(32, 3, 16, 16)
    for _ in range(30):
        logs = algorithm.update([(x, y)])
    right = (algorithm.eval().predict(x).argmax(1) == y).float().mean()
    print(f"loss {logs['loss']:.3f}, {100 * right:.0f} % right")
