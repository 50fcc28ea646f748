"""ITTA, the test-time half. Improved Test-Time Adaptation for Domain Generalization.
Chen, Zhang, Song, Shan, Liu, CVPR 2023. https://arxiv.org/abs/2304.04494

After each block of the trained backbone stands an adaptive block f_Θ that starts as the identity. For each unlabelled
batch only Θ steps, on the learned consistency loss, and then the batch is predicted with the new Θ (Alg. 2).
What differs from the paper and its released code: docs/deviations.md.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from itta.adapters.base import Adapter, check_images
from itta.algorithms.base import Algorithm
from itta.errors import InputError
from itta.hparams import hp
from itta.nn.affine_stack import AffineStack, channel_shape
from itta.nn.mixstyle import MixDraw, draw_mix
from itta.nn.optimizer import load_optimizer_tensors, optimizer_tensors, with_prefix, without_prefix
from itta.nn.views import ViewDraw, draw_noise, mixing, two_views


@dataclass(frozen=True)
class Hparams:
    lr: float = hp(1e-4, "learning rate of Θ")
    steps: int = hp(1, "updates per batch")
    episodic: bool = hp(False, "start every batch from the identity, instead of carrying Θ along the stream")
    blocks: tuple[str, ...] = hp((), "the blocks that get an f_Θ; none named means all")
    depth: int = hp(5, "layers of each f_Θ")
    per: Literal["pixel", "channel"] = hp("pixel", "one entry of Θ per pixel, as in the paper, or per channel")
    loss: Literal["learned", "plain"] = hp("learned", "mean(f_w(z − z')²), or mean((z − z')²) without f_w")
    optimizer: Literal["adam", "sgd"] = hp("adam", "adam as released, sgd as the paper's text says")
    loss_scale: float = hp(1.0, "factor of the loss; the release's 1e-6 makes its step vanish")
    bank_below: int = hp(8, "batches smaller than this mix with the model's style bank instead of each other")
    seed: int = hp(0, "seed of the views")


PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "released": {"lr": 5e-6, "loss_scale": 1e-6, "bank_below": 0},  # 0.1 of DomainBed's 5e-5
}


class ITTA(Adapter):
    """z, z' = f_Θ(f_θ(x)) block by block, z' with its style mixed after one of the first two blocks;

    Θ ← step on mean(f_w(z − z')²); predict f_φ(z) with the new Θ.

    What lies before the first f_Θ runs once per batch and without gradients; the prediction runs one view.
    """

    name = "itta"
    paper = "Chen et al., Improved Test-Time Adaptation for Domain Generalization, CVPR 2023"
    Hparams = Hparams
    predicts = "after"

    def __init__(self, trained: Algorithm, hp: Any) -> None:
        super().__init__(trained, hp)
        if hp.steps < 1:
            raise InputError(f"steps must be at least 1, got {hp.steps}.")
        if hp.loss == "learned" and not hasattr(trained, "f_w"):
            raise InputError(
                f"a model trained with {trained.name!r} has no learned loss f_w: train with --algorithm itta, "
                "or adapt with the setting loss=plain."
            )
        self.f_w: nn.Module = getattr(self.model, "f_w", nn.Identity())
        backbone = self.model.backbone
        self.blocks = tuple(sorted(hp.blocks or backbone.block_names, key=backbone.index))
        self.mix_blocks = backbone.block_names[:2]
        self.reset()

    def reset(self) -> None:
        hp, like = self.hp, next(self.model.parameters())
        shapes = self.model.backbone.block_shapes(self.model.task.image_size)
        if hp.per == "channel":
            shapes = {block: channel_shape(shape) for block, shape in shapes.items()}
        self.theta = nn.ModuleDict({b: AffineStack(shapes[b], hp.depth, identity=True) for b in self.blocks}).to(like)
        make_optimizer = torch.optim.Adam if hp.optimizer == "adam" else torch.optim.SGD
        self.optimizer = make_optimizer(self.theta.parameters(), lr=hp.lr)
        self.generator = torch.Generator().manual_seed(hp.seed)

    @torch.inference_mode(False)  # a caller who only predicts may well have switched gradients off
    @torch.enable_grad()
    def __call__(self, x: Tensor) -> Tensor:
        check_images(x, self.model.task.image_size if self.hp.per == "pixel" else None)
        draw = self.draw_view(len(x))
        if self.hp.episodic:
            self.forget()
        z, mixed = self.before_theta(x, draw)
        for _ in range(self.hp.steps):
            self.step(z, draw, mixed)
        with torch.no_grad():
            return self.model.classify(self.model.backbone.resume(self.blocks[0], z[: len(x)], self.adapt_block))

    def adapt_block(self, block: str, z: Tensor) -> Tensor:
        return self.theta[block](z) if block in self.theta else z

    @torch.no_grad()
    def before_theta(self, x: Tensor, draw: ViewDraw) -> tuple[Tensor, bool]:
        """The output of the first adapted block before its f_Θ, and whether the views have parted by then."""
        backbone, first = self.model.backbone, self.blocks[0]
        x = self.model.inputs(x)
        if isinstance(draw, MixDraw) and backbone.index(draw.block) < backbone.index(first):
            return backbone.until(first, x, mixing(draw)), True
        return backbone.until(first, x), False

    def step(self, z: Tensor, draw: ViewDraw, mixed: bool) -> None:
        """One update of Θ on the consistency of the two views."""
        loss = self.hp.loss_scale * self.loss(*self.views(z, draw, mixed))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def views(self, z: Tensor, draw: ViewDraw, mixed: bool) -> tuple[Tensor, Tensor]:
        backbone, first = self.model.backbone, self.blocks[0]
        if mixed:
            clean, augmented = backbone.resume(first, z, self.adapt_block).chunk(2)
            return clean, augmented
        return two_views(lambda after: backbone.resume(first, z, after), draw, self.adapt_block)

    def loss(self, z: Tensor, z_aug: Tensor) -> Tensor:
        """Eq. 1 on the target's features."""
        if self.hp.loss == "plain":
            return (z - z_aug).square().mean()
        h = z - z_aug if self.model.hp.difference == "z-z'" else z_aug - z
        return self.f_w(h).square().mean()

    def draw_view(self, n: int) -> ViewDraw:
        """Draw the second view as in training; a batch too small to mix with itself takes styles from the bank."""
        trained = self.model.hp
        alpha = getattr(trained, "mix_alpha", 0.1)
        if getattr(trained, "view", "mixstyle") == "noise":
            return draw_noise(n, self.model.backbone.dim, trained.sfa_sigma, self.generator)
        bank = self.model.style_bank
        if n < self.hp.bank_below and bank is not None:
            return bank.draw(n, alpha, self.generator)
        if n == 1 and self.hp.bank_below > 0:
            raise InputError(
                "a batch of one image has nobody to mix styles with, and this model carries no style bank: "
                "send at least two images at a time, or train it again with this version."
            )
        return draw_mix(n, self.mix_blocks, alpha, self.generator)

    def forget(self) -> None:
        """Θ back to the identity and the optimiser fresh; the views' random numbers go on."""
        for stack in self.theta.values():
            assert isinstance(stack, AffineStack)
            stack.restart()
        self.optimizer.state.clear()

    def state_dict(self) -> dict[str, Tensor]:
        return {
            **with_prefix("theta.", {k: v.clone() for k, v in self.theta.state_dict().items()}),
            **with_prefix("optimizer.", {k: v.clone() for k, v in optimizer_tensors(self.optimizer).items()}),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.theta.load_state_dict(without_prefix("theta.", state))
        load_optimizer_tensors(self.optimizer, without_prefix("optimizer.", state))
        self.generator.set_state(state["generator"])
