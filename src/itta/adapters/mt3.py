"""MT3, the test-time half. MT3: Meta Test-Time Training for Self-Supervised Test-Time Adaption.
Bartler, Bühler, Wiewel, Döbler, Yang, AISTATS 2022. https://arxiv.org/abs/2103.16201

Three things differ here. The views are those of training. With ``steps`` above 1, later steps use the same views; the
training prepares for one step only. With ``per=batch`` a batch is a task, as in training, with one or more pairs of
views of each image.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from itta.adapters import gradient
from itta.adapters.base import Needs, check_at_least
from itta.adapters.gradient import GradientAdapter
from itta.algorithms import mt3
from itta.errors import InputError
from itta.functional.self_supervision import byol, draw_views, make_views
from itta.hparams import hp
from itta.models.trained import Trained


@dataclass(frozen=True)
class Hparams(gradient.Hparams):
    lr: float = hp(0.0, "learning rate; 0 means the size of the inner step in training")
    steps: int = hp(1, "updates per image, or per batch")
    episodic: bool = hp(True, "start every image, or batch, from the trained model")
    optimizer: gradient.OptimizerName = hp("sgd", "adam, or plain SGD")
    per: Literal["image", "batch"] = hp("image", "adapt to each image separately, or to a batch together")
    views: int = hp(32, "pairs of augmented views in an update; at least one pair of each image")


class MT3(GradientAdapter):
    """The inner step of training, on pairs of views a, b of one image; projector g and predictor q change too:

    θ, g, q ← step on ⟨2 − 2 cos(q(g(f_θ(a))), v_b)⟩ + ⟨2 − 2 cos(q(g(f_θ(b))), v_a)⟩, gradients clipped as in training,

    with v = g(f_θ(·)) before the first step. Then the image is predicted, and the trained weights are restored.
    """

    name = "mt3"
    paper = "Bartler et al., MT3: Meta Test-Time Training for Self-Supervised Test-Time Adaption, AISTATS 2022"
    Hparams = Hparams
    needs = Needs(training="mt3", changes="all weights except the head's, reset for each image")
    predicts = "after"

    model: mt3.MT3

    def __init__(self, trained: Trained, hp: Any) -> None:
        if not isinstance(trained, mt3.MT3):
            raise InputError(
                f"mt3 needs a model with projector and predictor, and {trained.origin} has none: "
                "train with --algorithm mt3."
            )
        super().__init__(trained, replace(hp, lr=hp.lr or trained.hp.mt3_inner_lr))

    def scope(self) -> dict[str, nn.Parameter]:
        check_at_least(1, self.hp, "views")
        return {name: p for name, p in self.model.named_parameters() if not name.startswith("head.")}

    def adapt(self, x: Tensor) -> Tensor:
        logits = []
        for i, group in enumerate(x.split(1) if self.hp.per == "image" else [x]):
            if self.hp.episodic and i > 0:
                self.forget()
            self.learn(group.repeat(-(-self.hp.views // len(group)), 1, 1, 1))
            with torch.no_grad():
                logits.append(self.model.predict(group))
        return torch.cat(logits)

    def learn(self, x: Tensor) -> None:
        views = make_views(x, draw_views(len(x), self.generator))
        target: Tensor | None = None
        for _ in range(self.hp.steps):
            projected = self.model.project(views)
            target = projected.detach() if target is None else target
            self.step(byol(self.model.predictor(projected), target))

    def step(self, loss: Tensor) -> None:
        """Take one step with each tensor's gradient clipped, as the inner step of training."""
        self.optimizer.zero_grad()
        loss.backward(inputs=list(self.moving.values()))
        for p in self.moving.values():
            if p.grad is not None:
                p.grad = mt3.clip(p.grad, self.model.hp.mt3_clip)
        self.optimizer.step()
        self.latest_loss = loss.detach()
