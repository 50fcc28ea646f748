"""TTT++, the test-time half. TTT++: When Does Self-Supervised Test-Time Training Fail or Thrive?
Liu, Kothari, van Delft, Bellot-Gurlet, Mordan, Alahi, NeurIPS 2021. https://openreview.net/forum?id=86NHK__yFDl

Three things differ here. It runs online, in one pass; the released code runs up to 500 epochs over the test set, and
uses the test labels to choose its learning rate and when to stop. Batch normalisation uses its stored statistics; the
released code updates them first. Distances between moments are divided by their expected value for the same number of
source images. That value is computed from the source's fourth moment instead of averaged over its batches.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from itta.adapters import gradient
from itta.adapters.base import Needs, check_at_least
from itta.adapters.gradient import GradientAdapter
from itta.adapters.scopes import whole_backbone
from itta.algorithms import ttt_plus
from itta.errors import InputError
from itta.functional.moments import moment_distance
from itta.functional.self_supervision import draw_views, make_views, nt_xent
from itta.hparams import hp
from itta.nn.running_moments import RunningMoments


@dataclass(frozen=True)
class Hparams(gradient.Hparams):
    lr: float = hp(1e-4, "learning rate")
    optimizer: gradient.OptimizerName = hp("sgd", "adam, or plain SGD")
    momentum: float = hp(0.9, "momentum of SGD")
    align_features: float = hp(0.05, "weight of the alignment of the features")
    align_projections: float = hp(0.2, "weight of the alignment of the projections")
    queue: int = hp(1536, "earlier images with features that also enter the moments")


class TTTPlus(GradientAdapter):
    """Features z = f_θ(x), projections h = g(z); μ, Σ over the batch and a queue of the latest earlier images:

    θ ← step on NT-Xent(two views of each image) + a_z·D(z) + a_h·D(h),
    D = ‖Σ − Σ_s‖²/E_Σ + ½·‖μ − μ_s‖²/E_μ,

    with μ_s, Σ_s of the source, and E the expected distance for the same number of source images. Then the batch is
    predicted.
    """

    name = "ttt++"
    paper = "Liu et al., TTT++: When Does Self-Supervised Test-Time Training Fail or Thrive?, NeurIPS 2021"
    Hparams = Hparams
    needs = Needs(
        source="mean, covariance and fourth moment of the features", training="ttt++", changes="all of the backbone"
    )
    predicts = "after"

    model: ttt_plus.TTTPlus

    def scope(self) -> dict[str, nn.Parameter]:
        if not isinstance(self.model, ttt_plus.TTTPlus):
            raise InputError(
                f"ttt++ needs a model with a contrastive head, and {self.model.origin} has none: "
                "train with --algorithm ttt++."
            )
        check_at_least(0, self.hp, "queue")
        return whole_backbone(self.model)

    def fresh(self) -> dict[str, Tensor]:
        spaces = {"features": self.model.feature_moments, "projections": self.model.projection_moments}
        return {name: running.mean.new_empty(0, len(running.mean)) for name, running in spaces.items()}

    def adapt(self, x: Tensor) -> Tensor:
        self.absorb(x)
        with torch.no_grad():
            return self.model.predict(x)

    def absorb(self, x: Tensor) -> None:
        n = len(x)
        for _ in range(self.hp.steps):
            views = make_views(x, draw_views(n, self.generator))
            z = self.model.backbone(self.model.inputs(torch.cat([x, views])))
            h = self.model.contrastive_head(z)
            loss = nt_xent(h[n:], self.model.hp.simclr_temperature)
            loss = loss + self.hp.align_features * self.distance("features", z[:n], self.model.feature_moments)
            loss = loss + self.hp.align_projections * self.distance("projections", h[:n], self.model.projection_moments)
            self.step(loss)
        self.enqueue("features", z[:n])
        self.enqueue("projections", h[:n])

    def distance(self, name: str, z: Tensor, source: RunningMoments) -> Tensor:
        """Return D of the batch and the queue. Gradients flow to the batch only."""
        return moment_distance(torch.cat([self.extra[name], z]), source.moments())

    def forget(self) -> None:
        super().forget()
        self.extra = self.fresh()  # features of earlier images are updates from earlier images, too

    def enqueue(self, name: str, z: Tensor) -> None:
        rows = torch.cat([self.extra[name], z.detach()])
        self.extra[name] = rows[max(0, len(rows) - self.hp.queue) :].clone()
