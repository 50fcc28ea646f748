"""The second view of a target's images, drawn as the model's training drew it."""

from typing import Any

import torch
from torch import Tensor

from itta.errors import InputError
from itta.models.trained import Trained
from itta.nn.style_mixing import draw_mix
from itta.nn.views import ViewDraw, draw_noise, mixing_points


def f_w_input(model: Any, h: Tensor) -> Tensor:
    """Turn h = z − z' into the input of the model's f_w: h, or z' − z."""
    return h if model.hp.difference == "z-z'" else -h


def draw_target_view(model: Trained, n: int, bank_below: int, generator: torch.Generator) -> ViewDraw:
    """Draw the second view of n images, for a model trained with any method.

    A batch smaller than ``bank_below``, too small to mix with itself, takes styles from the model's bank.
    """
    views = model.second_views
    if views.kind == "noise":
        return draw_noise(n, model.backbone.dim, views.sigma, generator)
    if n < bank_below and model.style_bank is not None:
        return model.style_bank.draw(n, views.alpha, generator)
    if n == 1 and bank_below > 0:
        raise InputError(
            "expected at least 2 images, because this model has no style bank to mix one image with, got 1: "
            "send larger batches, or collect one: itta.collect(model, source_batches)."
        )
    return draw_mix(n, mixing_points(model.backbone), views.alpha, generator)
