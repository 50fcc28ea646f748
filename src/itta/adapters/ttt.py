"""TTT, the test-time half. Test-Time Training with Self-Supervision for Generalization under Distribution Shifts.
Sun, Wang, Liu, Miller, Efros, Hardt, ICML 2020. https://arxiv.org/abs/1909.13231

The defaults are the online form; the paper's standard form is ``steps=10 episodic=true``. Three things differ here. The
views are those of training (crop, flip, colour jitter, grey); the paper crops and flips. Batch normalisation always
uses its stored statistics. With ``per=batch`` an update uses all images of a batch together, with one or more views of
each.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itta.adapters import gradient
from itta.adapters.base import Needs, check_at_least
from itta.adapters.gradient import GradientAdapter
from itta.algorithms import ttt
from itta.errors import InputError
from itta.functional.augment import augment, draw_augmentation
from itta.functional.self_supervision import rotate
from itta.functional.transfers import send
from itta.hparams import hp


@dataclass(frozen=True)
class Hparams(gradient.Hparams):
    steps: int = hp(1, "updates per image, or per batch")
    episodic: bool = hp(False, "start every image, or batch, from the trained model")
    optimizer: gradient.OptimizerName = hp("sgd", "adam, or plain SGD")
    per: Literal["image", "batch"] = hp("image", "learn from each image separately, or from a batch together")
    views: int = hp(32, "augmented views in an update; at least one of each image")
    threshold: float = hp(1.0, "skip images predicted upright with at least this probability; 1 skips none")
    fix_branch: bool = hp(False, "keep the rotation branch as trained, and change only the shared blocks")


class TTT(GradientAdapter):
    """x_v: augmented views of the image; k_v: a random number of quarter turns for each view.

    shared blocks and rotation branch ← step on mean_v CE(f_rot(x_v rotated by k_v), k_v).

    Then the image is predicted. Every step draws new views.
    """

    name = "ttt"
    paper = (
        "Sun et al., Test-Time Training with Self-Supervision for Generalization under Distribution Shifts, ICML 2020"
    )
    Hparams = Hparams
    needs = Needs(training="ttt", changes="all blocks except the last, and the rotation branch")
    predicts = "after"

    model: ttt.TTT

    def scope(self) -> dict[str, nn.Parameter]:
        if not isinstance(self.model, ttt.TTT):
            raise InputError(
                f"ttt needs a model with a rotation branch, and {self.model.origin} has none: "
                "train with --algorithm ttt."
            )
        check_at_least(1, self.hp, "views")
        if not 0 < self.hp.threshold <= 1:
            raise InputError(f"threshold must be above 0 and at most 1, got {self.hp.threshold}.")
        replaced = {f"backbone.{name}" for name in self.model.rotation_branch.replacements()}
        idle = ("head.", "rotation_") if self.hp.fix_branch else ("head.",)
        named = self.model.named_parameters()
        return {name: p for name, p in named if name not in replaced and not name.startswith(idle)}

    def adapt(self, x: Tensor) -> Tensor:
        logits = []
        for i, group in enumerate(x.split(1) if self.hp.per == "image" else [x]):
            if self.hp.episodic and i > 0:
                self.forget()
            unsure = self.choose(group)
            for _ in range(self.hp.steps if len(unsure) else 0):
                self.learn(unsure)
            with torch.no_grad():
                logits.append(self.model.predict(group))
        return torch.cat(logits)

    @torch.no_grad()
    def choose(self, x: Tensor) -> Tensor:
        """Return the images to learn from."""
        if self.hp.threshold == 1:  # also if rounding makes a probability 1
            return x
        upright = self.model.rotation_logits(self.model.inputs(x)).softmax(1)[:, 0]
        return x[(upright < self.hp.threshold).nonzero()[:, 0]]

    def learn(self, x: Tensor) -> None:
        copies = x.repeat(-(-self.hp.views // len(x)), 1, 1, 1)
        drawn = draw_augmentation(len(copies), self.generator)
        turns = torch.randint(4, (len(copies),), generator=self.generator)
        turned = rotate(augment(copies, drawn), turns)
        logits = self.model.rotation_logits(self.model.inputs(turned))
        self.step(F.cross_entropy(logits, send(turns, x.device)))
