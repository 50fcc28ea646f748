"""A trial: everything that decides the result of one training, and nothing else."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from itta.seeds import derive_seed


@dataclass(frozen=True)
class Trial:
    dataset: str  # a name, or the path of a folder or a manifest
    algorithm: str
    train_domains: tuple[str, ...]
    test_domains: tuple[str, ...] = ()
    hparams_seed: int = 0
    trial_seed: int = 0
    steps: int = 300
    backbone: str = "efficientnet_lite0"
    weights: str = "imagenet"
    image_size: int = 64
    augment: bool = True
    strict: bool = False
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """A name for this trial, the same on every machine."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()

    @cached_property
    def settings_key(self) -> str:
        """The same for trials that differ in their domains alone."""
        return replace(self, train_domains=(), test_domains=()).key

    @property
    def seed(self) -> int:
        """The seed of everything random in the run but the splits, which depend on the trial seed alone."""
        return derive_seed(self.dataset, self.algorithm, list(self.test_domains), self.hparams_seed, self.trial_seed)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"train_domains": list(self.train_domains), "test_domains": list(self.test_domains)}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Trial":
        domains = {k: tuple(values[k]) for k in ("train_domains", "test_domains")}
        return Trial(**{**values, **domains})
