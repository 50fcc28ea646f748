"""The parts that all test-time methods share: a copy of the trained model, and an exact reset."""

import copy
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from itta.errors import InputError, InputWarning
from itta.functional.extremes import extremes
from itta.functional.transfers import send
from itta.hparams import recorded
from itta.models.trained import Trained, frozen_copy, with_fast_backbone
from itta.nn.batch_norm import has_batch_norm
from itta.nn.optimizer import with_prefix, without_prefix

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Needs:
    """The requirements of an adapter on model and stream, and the part of the model that it changes."""

    batch_norm: bool = False  # the backbone must have batch normalisation
    batch: int = 1  # least number of images at a time
    source: str = ""  # statistics of the source data that it needs besides the weights
    training: str = ""  # the algorithm that must have trained the model
    changes: str = "nothing"  # the part of the model that it changes


@dataclass(frozen=True)
class Hparams:
    pass


class Adapter(nn.Module):
    """A method that learns from unlabelled batches while it predicts them.

    It is built from a `Trained` model, which it never changes. A subclass defines `forward`. If it keeps state, it
    defines `reset`, `state` and `load_state`. If it can be exported, it defines `frozen`.

    It is a module: ``to`` moves the network and all state. Unlike other modules, ``state_dict`` holds everything that
    changes and nothing else, and ``train`` and ``eval`` change nothing: the method sets the modes of its network.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    Hparams: ClassVar[type[Any]] = Hparams
    needs: ClassVar[Needs] = Needs()
    candidates: ClassVar[tuple[dict[str, Any], ...]] = ({},)  # settings that `itta tune` tries
    predicts: ClassVar[str]  # "before" or "after" its update on the same batch
    guarded: ClassVar[bool] = False  # whether `adapt` puts a guard around it by default
    stays: ClassVar[tuple[str, ...]] = ()  # attributes with tensors that stay on the CPU
    guard: ClassVar[Mapping[str, Any]] = {}  # settings of its guard that differ from the guard's defaults

    def __init__(self, trained: Trained, hp: Any) -> None:
        super().__init__()
        if self.needs.batch_norm and not has_batch_norm(trained.backbone):
            raise InputError(
                f"{self.name} adapts batch normalisation, and this model's backbone has none: choose another adapter."
            )
        check_precision(self.name, next(trained.parameters()).dtype)
        self.model, self.hp = frozen_copy(trained), hp
        self.register_load_state_dict_post_hook(ignore_networks)
        self._still: list[Trained] = []  # a list, so that it is no submodule: `still` says what it is
        self.checked: Tensor | None = None  # the next batch, if a guard has looked for pixels that are not finite
        self.latest_loss: Tensor | float = 0.0  # of the last update; a tensor stays on its device until it is read
        self.reference: Tensor | None = None  # the trained model's logits for the last batch, if they were computed
        self.fetched: tuple[Tensor, Tensor] | None = None  # its answer and the reference, if it has them on the host
        self.opinions: dict[str, Tensor] = {}  # logits of other answers to the last batch, if the method has some
        self.embeddings: Tensor | None = None  # the trained model's features of the last batch, if they were computed

    def forward(self, x: Tensor) -> Tensor:
        """Turn images [B, 3, H, W] in [0, 1] into logits [B, classes], and learn from them before or after."""
        raise NotImplementedError

    def observe(self, x: Tensor) -> None:
        """Learn from a batch without predicting it. This is faster than a call if the prediction needs its own pass."""
        self(x)

    def frozen(self) -> nn.Module:
        """Return the present prediction as a module that does not learn, from images in [0, 1] to logits.

        A method has none if its prediction for an image depends on the rest of the batch, or is random.
        """
        raise not_fixed(self.name, "its prediction for an image depends on the rest of the batch")

    def reset(self) -> None:
        """Restore the state at construction, with optimiser and random numbers."""

    def state(self) -> dict[str, Tensor]:
        """Return copies of all tensors that change, by name."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from copies of the tensors that `state` returned."""

    def state_dict(self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """Return the whole state as tensors by name, to continue later or elsewhere."""
        found = with_prefix(prefix, self.state())
        if destination is None:
            return found
        destination.update(found)
        return destination

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> None:
        """Continue from the state that `state_dict` returned."""
        self.load_state(state_dict)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        """Continue from the state of a module that holds this one."""
        self._prefix = prefix
        self.load_state(without_prefix(prefix, state_dict))

    def train(self, mode: bool = True) -> "Self":
        """Change nothing: a method sets the modes of its network itself."""
        return self

    def to(self, *args: Any, **kwargs: Any) -> "Self":
        """Move the network and all state to a device, or to float32 or float64."""
        dtype = torch._C._nn._parse_to(*args, **kwargs)[1]
        if dtype is not None:
            check_precision(self.name, dtype)
        return super().to(*args, **kwargs)

    def half(self) -> "Self":
        return self.to(torch.float16)

    def bfloat16(self) -> "Self":
        return self.to(torch.bfloat16)

    def _apply(self, fn: Any, recurse: bool = True) -> "Self":
        """Move modules as any module does, and then the tensors that the method keeps beside them."""
        super()._apply(fn, recurse)
        self._still.clear()
        for name, value in vars(self).items():
            if not name.startswith("_") and name not in self.stays:
                setattr(self, name, moved(value, fn))
        return self

    @property
    def still(self) -> Trained:
        """The network on a fast copy of its backbone, for methods that never change the backbone's weights."""
        if not self._still:
            self._still.append(with_fast_backbone(self.model))
        return self._still[0]

    def network(self) -> Trained:
        """Return the network that predicts now, to be inspected, not changed. `adapt_block` acts after each block."""
        if self.needs.changes == "nothing":
            raise InputError(f"{self.name} changes nothing in the network: choose an adapter that does.")
        return self.model

    def adapt_block(self, block: str, z: Tensor) -> Tensor:
        """Apply the part that the adapter adds after a block."""
        return z

    def describe(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        return recorded(self.hp)

    @property
    def last_loss(self) -> float:
        """The loss of the last update. The host waits for the device to read it."""
        return float(self.latest_loss)

    @last_loss.setter
    def last_loss(self, loss: Tensor | float) -> None:
        self.latest_loss = loss

    def receive(self, x: Tensor) -> Tensor:
        """Check a batch, and send it to the device of the network.

        Images on the host are checked there, which costs no waiting for the device.
        """
        self.check(x)
        return self.place(x)

    def place(self, x: Tensor) -> Tensor:
        """Send images to the device of the network, in the precision of its weights."""
        weights = next(self.model.parameters())
        return send(x, weights.device, weights.dtype if x.is_floating_point() else None)

    def check(self, x: Tensor) -> None:
        """Refuse a batch that does not hold images, is not finite, or is too small."""
        known, self.checked = self.checked is x, None
        if not known:
            check_images(x)
        if len(x) < self.needs.batch:
            raise InputError(
                f"{self.name} needs at least {self.needs.batch} images at a time, got {len(x)}: send larger batches."
            )


def ignore_networks(adapter: Any, keys: Any) -> None:
    """Let a module that holds an adapter load a state without the adapter's network, which a state never has."""
    keys.missing_keys[:] = [name for name in keys.missing_keys if not name.startswith(adapter._prefix)]


def moved(value: Any, fn: Callable[[Tensor], Tensor]) -> Any:
    """Apply a move to a tensor, or to those in a dict or in an object that can move; parameters have moved already."""
    if isinstance(value, nn.Parameter):
        return value
    if isinstance(value, Tensor):
        return fn(value)
    if isinstance(value, dict):
        return {k: moved(v, fn) for k, v in value.items()}
    if hasattr(value, "move"):
        value.move(fn)
    return value


def check_precision(name: str, dtype: torch.dtype) -> None:
    """Refuse weights in half precision."""
    if dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"{name} keeps its weights in float32, or float64, and got {dtype}: its small steps and its statistics "
            "would be rounded away. For speed, call it under torch.autocast instead."
        )


def check_at_least(least: int, hp: Any, *names: str) -> None:
    """Refuse settings below ``least``, and NaN."""
    for name in names:
        if not getattr(hp, name) >= least:
            raise InputError(f"{name} must be at least {least}, got {getattr(hp, name)}.")


def check_shares(hp: Any, *names: str) -> None:
    """Refuse settings that are not between 0 and 1."""
    for name in names:
        if not 0 <= getattr(hp, name) <= 1:
            raise InputError(f"{name} must be between 0 and 1, got {getattr(hp, name)}.")


def with_tensors(model: Trained, tensors: Mapping[str, Tensor]) -> Trained:
    """Return a copy of the model with its tensors of these names replaced."""
    changed = copy.deepcopy(model)
    changed.load_state_dict(tensors, strict=False)
    return changed


def not_fixed(who: str, why: str) -> InputError:
    """Return the error of an adapter that cannot be frozen."""
    return InputError(f"{who} cannot be frozen: {why}. Choose another adapter, for example itta, itta+, shot or t3a.")


def check_images(x: Tensor, image_size: int | None = None) -> None:
    """Refuse input that would spoil an adapter's state: anything but a batch of images with finite pixels."""
    check_batch(x)
    if image_size is not None and x.shape[-2:] != (image_size, image_size):
        raise InputError(
            f"expected images of {image_size}×{image_size} pixels, got {x.shape[-2]}×{x.shape[-1]}: resize them."
        )
    finite = finite_images(x)
    if not finite.all():
        bad = int((~finite).nonzero()[0])
        raise InputError(
            f"image {bad} of the batch has NaN or infinite pixels: remove it. The adapter has not changed."
        )


def check_batch(x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise InputError(f"expected images as a tensor [B, 3, H, W], got {type(x).__name__}: convert them first.")
    if x.ndim != 4 or x.shape[1] != 3 or len(x) == 0:
        raise InputError(
            f"expected a batch of RGB images [B, 3, H, W] with B ≥ 1, got a tensor of shape {tuple(x.shape)}."
        )


def finite_images(x: Tensor) -> Tensor:
    """Tell which images have finite pixels only, [B]. Warn if images on the host are far outside [0, 1]."""
    x = x.detach()
    if x.device.type == "cpu":  # one pass is enough, and the host waits for no device
        low, high = (float(value) for value in extremes(x))
        if low < -1 or high > 2:
            warnings.warn(
                f"pixels from {low:.3g} to {high:.3g}: expected images between 0 and 1. Divide bytes by 255, and leave "
                "the normalisation to the model (itta.wrap takes mean and std).",
                InputWarning,
                stacklevel=2,
            )
        if math.isfinite(low) and math.isfinite(high):
            return torch.ones(len(x), dtype=torch.bool)
    lowest, highest = x.flatten(1).aminmax(dim=1)
    return torch.isfinite(lowest) & torch.isfinite(highest)  # much faster than isfinite of all pixels
