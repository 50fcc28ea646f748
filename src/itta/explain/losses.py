"""The losses that can be explained, and the Grad-CAM map of each loss for every image of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from itta.errors import InputError, unknown
from itta.functional.entropy import entropy
from itta.functional.self_supervision import rotate
from itta.models.second_view import draw_target_view, f_w_input
from itta.models.trained import Trained
from itta.nn.backbone import After, keep
from itta.nn.style_mixing import MixDraw
from itta.nn.tap import BlockTap, second_view
from itta.nn.views import ViewDraw

LOSSES = ("main", "learned", "plain", "entropy", "rotation")
CLASS = "class:"  # followed by the name of a class
BANK_BELOW = 8  # images; the default of the adapter's bank_below


@dataclass(frozen=True)
class RandomViews:
    """The random part of the maps of a batch."""

    view: ViewDraw | None = None  # for the consistency losses
    turns: Tensor | None = None  # quarter turns of each image, for the rotation loss


@dataclass(frozen=True)
class NetworkState:
    """A network, and the change that an adapter makes after its blocks."""

    model: Trained
    after: After = keep


@dataclass(frozen=True)
class MapRequest:
    """Which maps to make."""

    losses: Sequence[str]
    block: str
    views: RandomViews = RandomViews()


def losses_of(model: Trained) -> tuple[str, ...]:
    """The losses that a model has."""
    lacks = {"learned": not hasattr(model, "f_w"), "rotation": not hasattr(model, "rotation_logits")}
    return tuple(name for name in LOSSES if not lacks.get(name, False))


def choose_losses(model: Trained, names: Sequence[str]) -> tuple[str, ...]:
    """The named losses, or by default all that the model has; refuse a loss that it does not have."""
    known = losses_of(model)
    for name in names:
        if name.startswith(CLASS):
            if name.removeprefix(CLASS) not in model.classes:
                raise unknown("class", name.removeprefix(CLASS), model.classes)
        elif name in LOSSES and name not in known:
            part, cure = {"learned": ("learned loss f_w", "itta"), "rotation": ("rotation head", "ttt")}[name]
            raise InputError(f"a model trained with {model.name!r} has no {part}: train with --algorithm {cure}.")
        elif name not in known:
            raise unknown("loss", name, [*known, f"{CLASS}NAME"])
    return tuple(dict.fromkeys(names)) or known


def draw_random_views(model: Trained, losses: Sequence[str], n: int, generator: torch.Generator) -> RandomViews:
    """Draw the second view and the turns of n images, if a loss needs them.

    The view is drawn as the adapter draws it, with one difference: every image gets a new style. Its partner is another
    image, and at most half of its own style stays, where Beta(α, α) often leaves all of it.
    """
    view = turns = None
    if {"learned", "plain"} & set(losses):
        view = draw_target_view(model, n, BANK_BELOW, generator)
        if isinstance(view, MixDraw) and view.partner is not None:
            order = view.partner
            partner = torch.empty_like(order).scatter_(0, order, order.roll(1))  # a cyclic shift of a random order
            view = replace(view, lam=torch.minimum(view.lam, 1 - view.lam), partner=partner)
    if "rotation" in losses:
        turns = torch.randint(4, (n,), generator=generator)
    return RandomViews(view, turns)


def batch_maps(network: NetworkState, x: Tensor, y: Tensor, wanted: MapRequest) -> tuple[dict[str, Tensor], Tensor]:
    """The signed map [B, H, W] of each loss for each image, and the logits.

    y is the true class, or -1 for the predicted one. All losses except rotation share one pass over the images, and
    thus the same activations. Rotation has a pass of its own; its map is turned back.
    """
    model, losses, view = network.model, wanted.losses, wanted.views.view
    with torch.no_grad():
        inputs = model.inputs(x)
    tap = BlockTap(wanted.block, network.after, view.block if isinstance(view, MixDraw) else None)
    z = tap.run(lambda: model.backbone(inputs, tap.step_in))
    with torch.enable_grad():
        logits = model.classify(z)
        values = {name: value for name in losses if (value := prediction_loss(model, name, logits, y)) is not None}
        if view is not None:
            h = z - second_view(model.backbone, z, view, tap)
            values |= {name: consistency_loss(model, name, h) for name in ("learned", "plain") if name in losses}
        maps = dict(zip(values, tap.maps(list(values.values()))))
    if wanted.views.turns is not None:
        maps["rotation"] = rotation_map(network, x, wanted.views.turns.to(x.device), wanted.block)
    return {name: maps[name] for name in losses}, logits.detach()


def prediction_loss(model: Trained, name: str, logits: Tensor, y: Tensor) -> Tensor | None:
    """A loss [B] of the prediction; None if the name is another kind of loss.

    The loss of a class is minus its logit: evidence for the class lowers it.
    """
    if name == "main":
        return F.cross_entropy(logits, torch.where(y < 0, logits.argmax(1), y), reduction="none")
    if name == "entropy":
        return entropy(logits)
    if name.startswith(CLASS):
        return -logits[:, model.classes.index(name.removeprefix(CLASS))]
    return None


def consistency_loss(model: Trained, name: str, h: Tensor) -> Tensor:
    """Eq. 1 of ITTA for each image, [B], with or without f_w; h = z − z'."""
    if name == "learned":
        f_w: Any = model.f_w
        h = f_w(f_w_input(model, h))
    return h.square().mean(1)


def rotation_map(network: NetworkState, x: Tensor, turns: Tensor, block: str) -> Tensor:
    """The map of the rotation loss, for images turned by ``turns``; the map is turned back.

    The rotation branch has a last block of its own. The adapter's change applies after the shared blocks only.
    """
    tap = BlockTap(block, network.after)
    rotation_logits: Any = network.model.rotation_logits
    with torch.no_grad():
        inputs = network.model.inputs(rotate(x, turns))
    logits = tap.run(lambda: rotation_logits(inputs, tap.step_in, tap.take))
    (turned,) = tap.maps([F.cross_entropy(logits, turns, reduction="none")])
    return rotate(turned[:, None], -turns % 4)[:, 0]
