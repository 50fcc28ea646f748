"""What every test-time method shares: it works on its own copy of a trained model, and can be reset exactly."""

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from itta.algorithms.base import Algorithm
from itta.errors import InputError
from itta.nn.batch_norm import has_batch_norm


@dataclass(frozen=True)
class Needs:
    """What an adapter asks of the model and of the stream, and what it changes."""

    batch_norm: bool = False  # the backbone must have batch normalisation
    batch: int = 1  # images at a time, at the least
    source: str = ""  # what it takes along from the source data, beside the weights
    training: str = ""  # the algorithm whose training it builds on
    changes: str = "nothing"  # what moves


@dataclass(frozen=True)
class Hparams:
    pass


class Adapter:
    """Learn from unlabelled batches while predicting them.

    Built from a trained `Algorithm`, which is never modified. A subclass defines `__call__`; where it keeps state,
    `reset`, `state_dict` and `load_state_dict`; and where it can be exported, `frozen`.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    Hparams: ClassVar[type[Any]] = Hparams
    needs: ClassVar[Needs] = Needs()
    candidates: ClassVar[tuple[dict[str, Any], ...]] = ({},)  # settings worth trying where they are chosen
    predicts: ClassVar[str]  # "before" or "after" its update on the same batch
    guarded: ClassVar[bool] = False  # whether a guard belongs to it, unless one is refused
    guard: ClassVar[Mapping[str, Any]] = {}  # settings of its guard, where they are not the guard's own

    def __init__(self, trained: Algorithm, hp: Any) -> None:
        if self.needs.batch_norm and not has_batch_norm(trained.backbone):
            raise InputError(
                f"{self.name} adapts batch normalisation, and this model's backbone has none: choose another adapter."
            )
        self.model, self.hp = frozen_copy(trained), hp
        self.last_loss = 0.0  # of the last update, for whoever watches
        self.reference: Tensor | None = None  # the trained model's own logits for the last batch, where they fell out

    def __call__(self, x: Tensor) -> Tensor:
        """Images [B, 3, H, W] in [0, 1] to logits [B, classes]; learn before or after, as the method does."""
        raise NotImplementedError

    def observe(self, x: Tensor) -> None:
        """Learn from a batch and give no answer; less work than a call, where the answer takes a pass of its own."""
        self(x)

    def frozen(self) -> nn.Module:
        """What images become now, without learning on: a module of its own, from images in [0, 1] to logits.

        A method has none if its answer to an image depends on the rest of the batch, or on chance.
        """
        raise not_fixed(self.name, "its answer to an image depends on the rest of the batch")

    def reset(self) -> None:
        """Go back to the state at construction, optimiser and random numbers included."""

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to go on later, elsewhere, as tensors by name."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from what `state_dict` gave."""

    def network(self) -> Algorithm:
        """The network that predicts now, `adapt_block` after each of its blocks; to look into, not to change."""
        if self.needs.changes == "nothing":
            raise InputError(f"{self.name} changes nothing in the network: choose an adapter that does.")
        return self.model

    def adapt_block(self, block: str, z: Tensor) -> Tensor:
        """What the adapter puts after a block."""
        return z

    def describe(self) -> dict[str, Any]:
        """The settings as plain values."""
        return asdict(self.hp)

    def check(self, x: Tensor) -> None:
        """Refuse a batch that is not of images, not finite, or too small."""
        check_images(x)
        if len(x) < self.needs.batch:
            raise InputError(
                f"{self.name} needs at least {self.needs.batch} images at a time, got {len(x)}: send larger batches."
            )


def check_at_least(least: int, hp: Any, *names: str) -> None:
    """Refuse settings below a least value, and NaN."""
    for name in names:
        if not getattr(hp, name) >= least:
            raise InputError(f"{name} must be at least {least}, got {getattr(hp, name)}.")


def check_shares(hp: Any, *names: str) -> None:
    """Refuse settings that are not between 0 and 1."""
    for name in names:
        if not 0 <= getattr(hp, name) <= 1:
            raise InputError(f"{name} must be between 0 and 1, got {getattr(hp, name)}.")


def frozen_copy(trained: Algorithm) -> Algorithm:
    """A copy for inference: no optimisers, no gradients, evaluation mode."""
    model = copy.deepcopy(trained, memo={id(trained.optimizers): {}})
    return model.eval().requires_grad_(False)


def with_tensors(model: Algorithm, tensors: Mapping[str, Tensor]) -> Algorithm:
    """A copy of the model with these in place of its own, by name."""
    changed = copy.deepcopy(model)
    changed.load_state_dict(tensors, strict=False)
    return changed


def not_fixed(who: str, why: str) -> InputError:
    return InputError(f"{who} cannot be frozen: {why}. Choose another adapter (itta, itta+, shot or t3a, say).")


def check_images(x: Tensor, image_size: int | None = None) -> None:
    """Refuse what would poison an adapter's state: not a batch of images, or not finite."""
    check_batch(x)
    if image_size is not None and x.shape[-2:] != (image_size, image_size):
        raise InputError(
            f"expected images of {image_size}×{image_size} pixels, got {x.shape[-2]}×{x.shape[-1]}: resize them."
        )
    finite = finite_images(x)
    if not finite.all():
        bad = int((~finite).nonzero()[0])
        raise InputError(
            f"image {bad} of the batch has NaN or infinite pixels: leave it out; the adapter is unchanged."
        )


def check_batch(x: Tensor) -> None:
    if x.ndim != 4 or x.shape[1] != 3 or len(x) == 0:
        raise InputError(
            f"expected a batch of RGB images [B, 3, H, W] with B ≥ 1, got a tensor of shape {tuple(x.shape)}."
        )


def finite_images(x: Tensor) -> Tensor:
    """Which images have finite pixels only, [B]."""
    return torch.isfinite(x).flatten(1).all(1)
