"""Recipes: settings of a training that go together. A flag or an argument of the user's own goes before its recipe.

`python -m benchmarks.recipe_selection` chose the quick recipe on source domains (docs/results/recipe.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from itta.errors import unknown
from itta.settings import SMALL_IMAGES, TrainSettings

OTHER_RATES = {"dann": ("lr_g", "lr_d"), "cdann": ("lr_g", "lr_d")}  # methods with other names for their learning rates


@dataclass(frozen=True)
class Recipe:
    training: TrainSettings
    lr: float | None = None  # None: the method's own
    batch_size: int | None = None  # images of each source domain in a step; None: the method's own
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # method -> further hyper-parameters

    def hparams(self, algorithm: str, training: TrainSettings | None = None) -> dict[str, Any]:
        """Return the hyper-parameters that the recipe sets for a method; small images have DomainBed's own."""
        training = training or self.training
        if training.regime == "small" or (training.regime == "auto" and training.image_size <= SMALL_IMAGES):
            return {}
        rates = dict.fromkeys(("lr", *OTHER_RATES.get(algorithm, ())), self.lr)
        found = {**rates, "batch_size": self.batch_size, **self.own.get(algorithm, {})}
        return {name: value for name, value in found.items() if value is not None}


RECIPES = {
    "quick": Recipe(  # minutes on two cores
        TrainSettings(steps=225, image_size=64, head_start=True, warmup=50, average=0.95),
        lr=2e-4,
        batch_size=8,
        own={"itta": {"align_every": 5}},  # three fifths of the time, and the same accuracy on left-out sources
    ),
    "full": Recipe(  # DomainBed's
        TrainSettings(backbone="resnet18", steps=5000, image_size=224),
        lr=5e-5,
        batch_size=32,
    ),
    "none": Recipe(TrainSettings()),  # plain steps on small images, with the method's own hyper-parameters
}
QUICK = RECIPES["quick"].training


def find_recipe(name: str, device: str = "cpu") -> Recipe:
    """Return the recipe of a name; auto is quick on a CPU, and full on other devices."""
    if name == "auto":
        name = "quick" if device == "cpu" else "full"
    if name not in RECIPES:
        raise unknown("recipe", name, ["auto", *RECIPES])
    return RECIPES[name]


def follow(recipe: Recipe, given: Mapping[str, Any]) -> TrainSettings:
    """Return the recipe's settings of a training, with those that the user gave in their place.

    >>> follow(RECIPES["full"], {"steps": 10}).steps, follow(RECIPES["full"], {}).image_size
    (10, 224)
    """
    return TrainSettings(**{**recipe.training.shared(), **given})
