"""ITTA, the test-time half. Improved Test-Time Adaptation for Domain Generalization.
Chen, Zhang, Song, Shan, Liu, CVPR 2023. https://arxiv.org/abs/2304.04494

An adaptive block f_Θ follows each block of the trained backbone and starts as the identity. For each unlabelled batch Θ
takes a step on the learned consistency loss, and then the batch is predicted with the new Θ (Alg. 2). Two settings
cover the paper's ablations: the loss (``objective``) and the parameters that change (``scope``).
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itta.adapters import gradient
from itta.adapters.base import Needs, check_images
from itta.adapters.frozen import Frozen
from itta.adapters.gradient import GradientAdapter
from itta.adapters.scopes import head, norm_affine, whole_backbone
from itta.errors import InputError
from itta.functional.entropy import entropy
from itta.functional.self_supervision import rotate
from itta.functional.transfers import send
from itta.hparams import hp
from itta.models.second_view import draw_target_view, f_w_input
from itta.nn.affine_stack import AffineStack, channel_shape
from itta.nn.backbone import After, Backbone
from itta.nn.style_mixing import MixDraw
from itta.nn.views import ViewDraw, mixing, two_views


@dataclass(frozen=True)
class Hparams(gradient.Hparams):
    lr: float = hp(1e-4, "learning rate of Θ")
    objective: Literal["learned", "plain", "entropy", "rotation"] = hp(
        "learned",
        "the loss. learned: mean(f_w(z − z')²); plain: mean((z − z')²); entropy: that of the predictions; "
        "rotation: cross-entropy of the images' rotation",
    )
    scope: Literal["blocks", "norm", "all", "head"] = hp(
        "blocks",
        "the parameters that change. blocks: Θ; norm: weights and biases of the backbone's normalisation; "
        "all: the whole backbone; head: the head",
    )
    blocks: tuple[str, ...] = hp((), "the blocks that get an f_Θ; all if none is named")
    depth: int = hp(5, "layers of each f_Θ")
    per: Literal["pixel", "channel"] = hp("pixel", "one entry of Θ per pixel, as in the paper, or per channel")
    loss_scale: float = hp(1.0, "factor of the loss; with the release's 1e-6 the step is nearly zero")
    bank_below: int = hp(8, "smaller batches mix styles with the model's style bank instead of each other")
    stop: Literal["none", "z", "z'"] = hp("none", "the view without gradient: the loss changes only the other one")
    anchor: float = hp(0.0, "weight of ‖Θ − its start‖², a penalty for leaving the start")


PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "released": {"lr": 5e-6, "loss_scale": 1e-6, "bank_below": 0},  # 0.1 of DomainBed's 5e-5
}


class ITTA(GradientAdapter):
    """z, z' = f_Θ(f_θ(x)) block by block; for z' styles are mixed after one of the first two blocks;

    Θ ← step on mean(f_w(z − z')²); predict f_φ(z) with the new Θ.

    The layers before the first parameter that changes run once per batch, without gradients. The prediction runs one
    view.
    """

    name = "itta"
    paper = "Chen et al., Improved Test-Time Adaptation for Domain Generalization, CVPR 2023"
    Hparams = Hparams
    needs = Needs(source="style bank, for small batches", training="itta", changes="added blocks Θ")
    candidates = tuple({"lr": lr, "per": per} for per in ("pixel", "channel") for lr in (1e-5, 1e-4, 1e-3))
    predicts = "after"

    def scope(self) -> dict[str, nn.Parameter]:
        self.check_objective()
        self.f_w: nn.Module = getattr(self.model, "f_w", nn.Identity())
        self.rotation_logits: Any = getattr(self.model, "rotation_logits", None)
        backbone = self.model.backbone
        self.blocks = tuple(sorted(self.hp.blocks or backbone.block_names, key=backbone.index))
        self.theta = nn.ModuleDict()
        if self.hp.scope == "norm":
            return norm_affine(self.model)
        if self.hp.scope == "all":
            return whole_backbone(self.model)
        if self.hp.scope == "head":
            return head(self.model)
        shapes = backbone.block_shapes(self.model.image_size)
        if self.hp.per == "channel":
            shapes = {block: channel_shape(shape) for block, shape in shapes.items()}
        stacks = {b: AffineStack(shapes[b], self.hp.depth, identity=True) for b in self.blocks}
        self.theta = nn.ModuleDict(stacks).to(next(self.model.parameters()))
        return dict(self.theta.named_parameters(prefix="theta"))

    def check_objective(self) -> None:
        """Refuse an objective that the model was not trained for, or that does not depend on the scope."""
        if self.hp.objective == "learned" and not hasattr(self.model, "f_w"):
            raise InputError(
                f"{self.model.origin} has no learned loss f_w: train with --algorithm itta, "
                "or adapt with the setting objective=plain."
            )
        if self.hp.objective == "rotation" and not hasattr(self.model, "rotation_logits"):
            raise InputError(f"{self.model.origin} has no rotation head: train with --algorithm ttt.")
        if self.hp.scope == "head" and self.hp.objective != "entropy":
            raise InputError(
                f"objective={self.hp.objective} does not depend on the head, so scope=head cannot lower it: "
                "choose objective=entropy."
            )

    def check(self, x: Tensor) -> None:
        sized = self.hp.per == "pixel" and self.hp.scope == "blocks"
        check_images(x, self.model.image_size if sized else None)

    def adapt(self, x: Tensor) -> Tensor:
        z = self.learn(x)
        with torch.no_grad():
            return self.model.classify(self.run(z[: len(x)]))

    def absorb(self, x: Tensor) -> None:
        self.learn(x)

    def freeze(self) -> nn.Module:
        return Frozen(self.name, self.model, self.theta)

    def learn(self, x: Tensor) -> Tensor:
        """Step on the objective, and return the result of `before`; its first rows are the images."""
        learn = {"entropy": self.learn_entropy, "rotation": self.learn_rotation}.get(
            self.hp.objective, self.learn_consistency
        )
        return learn(self.model.inputs(x))

    def learn_consistency(self, x: Tensor) -> Tensor:
        """Step on Eq. 1 of the target's features."""
        draw = self.draw_view(len(x))
        z, mixed = self.before(x, draw)
        for _ in range(self.hp.steps):
            views = self.run(z).chunk(2) if mixed else two_views(lambda after: self.run(z, after), draw)
            self.step(self.hp.loss_scale * self.loss(*views) + self.pull())
        return z

    def learn_entropy(self, x: Tensor) -> Tensor:
        z, _ = self.before(x)
        for _ in range(self.hp.steps):
            self.step(self.hp.loss_scale * entropy(self.model.classify(self.run(z))).mean() + self.pull())
        return z

    def learn_rotation(self, x: Tensor) -> Tensor:
        drawn = torch.randint(4, (len(x),), generator=self.generator)
        turned, turns = rotate(x, drawn), send(drawn, x.device)
        for _ in range(self.hp.steps):
            logits = self.rotation_logits(turned, self.adapt_block)
            self.step(self.hp.loss_scale * F.cross_entropy(logits, turns) + self.pull())
        return self.before(x)[0]

    def pull(self) -> Tensor | float:
        """Return the penalty for leaving the start."""
        if not self.hp.anchor:
            return 0.0
        return self.hp.anchor * torch.stack([(p - self.start[k]).square().sum() for k, p in self.moving.items()]).sum()

    def loss(self, z: Tensor, z_aug: Tensor) -> Tensor:
        """Return Eq. 1, with or without f_w, and without gradient for the view in ``stop``."""
        z = z.detach() if self.hp.stop == "z" else z
        z_aug = z_aug.detach() if self.hp.stop == "z'" else z_aug
        if self.hp.objective == "plain":
            return (z - z_aug).square().mean()
        return self.f_w(f_w_input(self.model, z - z_aug)).square().mean()

    @property
    def trunk(self) -> Backbone:
        """The backbone; a fast copy of it, if none of its own parameters changes."""
        return (self.still if self.hp.scope in ("blocks", "head") else self.model).backbone

    @torch.no_grad()
    def before(self, x: Tensor, draw: ViewDraw | None = None) -> tuple[Tensor, bool]:
        """Run up to the first parameter that changes. Return the result, and whether it already holds both views.

        The result is the output of the first adapted block before its f_Θ. With scope=head it is the features. With
        scope=norm or all it is the images themselves.
        """
        backbone, first = self.trunk, self.blocks[0]
        if self.hp.scope == "head":
            return backbone(x), False
        if self.hp.scope != "blocks":
            return x, False
        if isinstance(draw, MixDraw) and backbone.index(draw.block) < backbone.index(first):
            return backbone.until(first, x, mixing(draw)), True
        return backbone.until(first, x), False

    def run(self, z: Tensor, after: After | None = None) -> Tensor:
        """Continue from the result of `before` to the features. ``after`` is called before each f_Θ."""
        backbone = self.trunk

        def adapted(block: str, z: Tensor) -> Tensor:
            return self.adapt_block(block, after(block, z) if after else z)

        if self.hp.scope == "head":
            return z
        return backbone(z, adapted) if self.hp.scope != "blocks" else backbone.resume(self.blocks[0], z, adapted)

    def adapt_block(self, block: str, z: Tensor) -> Tensor:
        return self.theta[block](z) if block in self.theta else z

    def draw_view(self, n: int) -> ViewDraw:
        return draw_target_view(self.model, n, self.hp.bank_below, self.generator)
