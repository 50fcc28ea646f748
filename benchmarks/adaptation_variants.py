"""The parts of ITTA's step and of itta+, one by one: what `python -m benchmarks.adaptation_grid --ablation` runs."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from itta.adapters import Adapter
from itta.adapters.base import Needs
from itta.functional.entropy import log_mean_probability
from itta.hparams import hp
from itta.nn.style_mixing import MixDraw, mix_style

CHANNEL = {"per": "channel", "lr": 1e-3}
ALWAYS = 10**9


@dataclass(frozen=True)
class StyledHparams:
    views: int = hp(4, "views of each image in a style of the bank")
    seed: int = hp(0, "seed of what is drawn")


class StyledViews(Adapter):
    """The mean prediction over an image and views of it, half of whose style is replaced by one of the style bank."""

    name = "styled views"
    paper = "none: a part of the investigation"
    Hparams = StyledHparams
    needs = Needs(source="style bank")
    predicts = "after"

    def __init__(self, trained: Any, hp: Any) -> None:
        super().__init__(trained, hp)
        self.reset()

    def reset(self) -> None:
        self.generator = torch.Generator().manual_seed(self.hp.seed)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        backbone, bank = self.model.backbone, self.model.style_bank
        assert bank is not None
        first = backbone.block_names[0]
        z = backbone.until(first, self.model.inputs(x))
        views = [z]
        for _ in range(self.hp.views):
            rows = torch.randint(len(bank), (len(x),), generator=self.generator)
            half = torch.full((len(x),), 0.5)
            views.append(mix_style(z, MixDraw(first, half, style=(bank.mean[first][rows], bank.std[first][rows]))))
        features = backbone.resume(first, torch.cat(views))
        return log_mean_probability(self.model.classify(features).split(len(x)))


def variants() -> dict[str, tuple[str | type[Adapter], dict[str, Any]]]:
    """Name in the table -> method and settings."""
    found: dict[str, tuple[str | type[Adapter], dict[str, Any]]] = {}
    for per in ("pixel", "channel"):
        for optimizer, rates in (("adam", (1e-5, 1e-4, 1e-3)), ("sgd", (1e-2, 1e-1, 1.0))):
            for lr in rates:
                found[f"itta, {per}, {optimizer} {lr:g}"] = ("itta", {"per": per, "optimizer": optimizer, "lr": lr})
    step: dict[str, dict[str, Any]] = {
        "views from the bank": {"bank_below": ALWAYS},
        "z fixed": {"stop": "z"},
        "z' fixed": {"stop": "z'"},
        "anchored, 0.01": {"anchor": 0.01},
        "anchored, 1": {"anchor": 1.0},
        "bank, z fixed, anchored 0.1": {"bank_below": ALWAYS, "stop": "z", "anchor": 0.1},
        "first block": {"blocks": ("$first",)},
        "last block": {"blocks": ("$last",)},
        "plain consistency": {"objective": "plain"},
        "entropy": {"objective": "entropy"},
        "3 steps": {"steps": 3},
        "episodic": {"episodic": True},
    }
    found |= {f"itta, channel, adam 0.001, {name}": ("itta", {**CHANNEL, **extra}) for name, extra in step.items()}
    found["4 bank-styled views averaged"] = (StyledViews, {})
    found |= {
        "itta+": ("itta+", {}),
        "itta+, no guard": ("itta+", {"guard": False}),
        "itta+, no temperature": ("itta+", {"temperature": False}),
        "itta+, half way": ("itta+", {"strength": 0.5}),
        "itta+, two blocks": ("itta+", {"blocks": ("$first", "$second")}),
        "itta+, all features in prototypes": ("itta+", {"supports": -1}),
        "itta+, no prior": ("itta+", {"prior": 0.0}),
    }
    return found


def with_blocks(settings: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Put a backbone's block names where the settings say $first, $second or $last."""
    places = {"$first": names[0], "$second": names[1], "$last": names[-1]}
    return {k: tuple(places.get(b, b) for b in v) if k == "blocks" else v for k, v in settings.items()}
