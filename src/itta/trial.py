"""A trial: everything that decides the result of one training, and nothing else."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from itta.hparams import Regime
from itta.seeds import derive_seed

LATER: dict[str, Any] = {"regime": "large", "run_seed": None}  # at these values they leave keys as they were


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
    regime: Regime = "large"  # whose defaults and ranges the hyper-parameters have
    run_seed: int | None = None  # that of DomainBed, in a sweep

    @cached_property
    def key(self) -> str:
        """A name for this trial, the same on every machine."""
        text = json.dumps(without_defaults(asdict(self)), sort_keys=True)
        return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()

    @cached_property
    def settings_key(self) -> str:
        """The same for trials that differ in their domains alone."""
        return replace(self, train_domains=(), test_domains=(), run_seed=None).key

    @property
    def seed(self) -> int:
        """The seed of everything random in the run but the splits, which depend on the trial seed alone."""
        if self.run_seed is not None:
            return self.run_seed
        return derive_seed(self.dataset, self.algorithm, list(self.test_domains), self.hparams_seed, self.trial_seed)

    def to_json(self) -> dict[str, Any]:
        domains = {"train_domains": list(self.train_domains), "test_domains": list(self.test_domains)}
        return without_defaults(asdict(self) | domains)

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Trial":
        domains = {k: tuple(values[k]) for k in ("train_domains", "test_domains")}
        return Trial(**{**values, **domains})


def without_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Leave out fields that came later and are not used."""
    return {k: v for k, v in values.items() if k not in LATER or v != LATER[k]}
