"""The second view of a target's images, drawn as the model's training drew it."""

from typing import Any

import torch

from itta.errors import InputError
from itta.nn.style_mixing import draw_mix
from itta.nn.views import ViewDraw, draw_noise, mixing_points


def draw_target_view(model: Any, n: int, bank_below: int, generator: torch.Generator) -> ViewDraw:
    """Draw the second view of n images, for a model trained with any method.

    A batch smaller than ``bank_below``, too small to mix with itself, takes styles from the model's bank.
    """
    alpha = getattr(model.hp, "mix_alpha", 0.1)
    if getattr(model.hp, "view", "mixstyle") == "noise":
        return draw_noise(n, model.backbone.dim, model.hp.sfa_sigma, generator)
    if n < bank_below and model.style_bank is not None:
        return model.style_bank.draw(n, alpha, generator)
    if n == 1 and bank_below > 0:
        raise InputError(
            "expected at least 2 images, because this model has no style bank to mix one image with, got 1: "
            "send larger batches, or train the model again with this version."
        )
    return draw_mix(n, mixing_points(model.backbone), alpha, generator)
