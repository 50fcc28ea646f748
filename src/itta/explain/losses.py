"""The losses to look at, and Grad-CAM of each for every image of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from itta.algorithms import Algorithm
from itta.errors import InputError, unknown
from itta.functional.entropy import entropy
from itta.functional.self_supervision import rotate
from itta.models.second_view import draw_target_view
from itta.nn.backbone import After, keep
from itta.nn.style_mixing import MixDraw
from itta.nn.tap import Tap, second_view
from itta.nn.views import ViewDraw

LOSSES = ("main", "learned", "plain", "entropy", "rotation")
CLASS = "class:"
BANK_BELOW = 8  # as the adapter has it


@dataclass(frozen=True)
class Draw:
    """What is random in the maps of a batch."""

    view: ViewDraw | None
    turns: Tensor | None


def offered(model: Algorithm) -> tuple[str, ...]:
    """The losses that a model has."""
    lacks = {"learned": not hasattr(model, "f_w"), "rotation": not hasattr(model, "rotation_logits")}
    return tuple(name for name in LOSSES if not lacks.get(name, False))


def choose_losses(model: Algorithm, names: Sequence[str]) -> tuple[str, ...]:
    """The losses named, or all that the model has; refuse those it has not."""
    there = offered(model)
    for name in names:
        if name.startswith(CLASS):
            if name.removeprefix(CLASS) not in model.task.classes:
                raise unknown("class", name.removeprefix(CLASS), model.task.classes)
        elif name in LOSSES and name not in there:
            part, cure = {"learned": ("learned loss f_w", "itta"), "rotation": ("rotation head", "ttt")}[name]
            raise InputError(f"a model trained with {model.name!r} has no {part}: train with --algorithm {cure}.")
        elif name not in there:
            raise unknown("loss", name, [*there, f"{CLASS}NAME"])
    return tuple(dict.fromkeys(names)) or there


def draw(model: Algorithm, losses: Sequence[str], n: int, generator: torch.Generator) -> Draw:
    """Draw the second view and the turns of n images, where a loss needs them.

    The view is the adapter's, except that every image gets one worth the name: no partner is the image itself, and at
    most half of its own style stays, where Beta(α, α) often leaves all of it.
    """
    view = turns = None
    if {"learned", "plain"} & set(losses):
        view = draw_target_view(model, n, BANK_BELOW, generator)
        if isinstance(view, MixDraw) and view.partner is not None:
            order = view.partner
            partner = torch.empty_like(order).scatter_(0, order, order.roll(1))  # one ring, so nobody meets himself
            view = replace(view, lam=torch.minimum(view.lam, 1 - view.lam), partner=partner)
    if "rotation" in losses:
        turns = torch.randint(4, (n,), generator=generator)
    return Draw(view, turns)


def batch_maps(
    model: Algorithm, x: Tensor, y: Tensor, losses: Sequence[str], block: str, drawn: Draw, after: After = keep
) -> tuple[dict[str, Tensor], Tensor]:
    """The signed map [B, H, W] of each loss for each image, and the logits.

    y is the true class, or -1 for the predicted one. All losses but rotation are read off one pass over the images as
    they are, hence off the same A; rotation has a pass of its own, and its map is turned back.
    """
    with torch.no_grad():
        inputs = model.inputs(x)
    parting = drawn.view.block if isinstance(drawn.view, MixDraw) else None
    tap = Tap(block, after, parting)
    z = tap.run(lambda: model.backbone(inputs, tap.step_in))
    with torch.enable_grad():
        logits = model.classify(z)
        values = {name: value for name in losses if (value := of_logits(model, name, logits, y)) is not None}
        if drawn.view is not None:
            h = z - second_view(model.backbone, z, drawn.view, tap)
            values |= {name: consistency(model, name, h) for name in ("learned", "plain") if name in losses}
        maps = dict(zip(values, tap.maps(list(values.values()))))
    if drawn.turns is not None:
        maps["rotation"] = rotation_map(model, x, drawn.turns.to(x.device), block, after)
    return {name: maps[name] for name in losses}, logits.detach()


def of_logits(model: Algorithm, name: str, logits: Tensor, y: Tensor) -> Tensor | None:
    """The losses [B] that a prediction has; a class's is minus its logit, which is lowered by what speaks for it."""
    if name == "main":
        return F.cross_entropy(logits, torch.where(y < 0, logits.argmax(1), y), reduction="none")
    if name == "entropy":
        return entropy(logits)
    if name.startswith(CLASS):
        return -logits[:, model.task.classes.index(name.removeprefix(CLASS))]
    return None


def consistency(model: Algorithm, name: str, h: Tensor) -> Tensor:
    """Eq. 1 of ITTA for each image, [B], with or without f_w; h = z − z'."""
    if name == "learned":
        f_w: Any = model.f_w
        h = f_w(h if model.hp.difference == "z-z'" else -h)
    return h.square().mean(1)


def rotation_map(model: Algorithm, x: Tensor, turns: Tensor, block: str, after: After) -> Tensor:
    """The map of which way the images were turned, upright again.

    The last block is the rotation branch's own; what an adapter adds stands behind the shared blocks only.
    """
    tap = Tap(block, after)
    rotation_logits: Any = model.rotation_logits
    with torch.no_grad():
        inputs = model.inputs(rotate(x, turns))
    logits = tap.run(lambda: rotation_logits(inputs, tap.step_in, tap.take))
    (turned,) = tap.maps([F.cross_entropy(logits, turns, reduction="none")])
    return rotate(turned[:, None], -turns % 4)[:, 0]
