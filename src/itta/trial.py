"""A trial: everything that decides the result of one training, and nothing else."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from itta.schema import Names, Seed, conform
from itta.seeds import derive_seed
from itta.settings import Precision, RegimeChoice, TrainSettings, check_seeds, regime_of

# Fields that came after the first release. At these values they do not enter the key, so old keys stay valid.
LATER: dict[str, Any] = {
    "regime": "large",
    "run_seed": None,
    "fingerprint": "",
    "weights_digest": "",
    "allow_missing_classes": False,
    "schedule": "constant",
    "warmup": 0,
    "average": 0.0,
    "bn": "auto",
    "head_start": False,
    "precision": "float32",
}


@dataclass(frozen=True)
class Trial(TrainSettings):
    dataset: str  # a name, or the path of a folder or a manifest
    algorithm: str
    train_domains: Names
    test_domains: Names = ()
    hparams_seed: Seed = 0
    trial_seed: Seed = 0
    regime: RegimeChoice = field(default="large", kw_only=True)  # auto is resolved
    overrides: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    run_seed: int | None = field(default=None, kw_only=True)  # DomainBed's, in a sweep
    precision: Precision = field(default="float32", kw_only=True)  # in which the network computes
    fingerprint: str = field(default="", kw_only=True)  # digest of the data; a data set known by name has none
    weights_digest: str = field(default="", kw_only=True)  # of the file of weights that training starts from

    def __post_init__(self) -> None:
        self.check()
        check_seeds(seed=self.trial_seed, hparams_seed=self.hparams_seed)
        if self.regime == "auto":
            object.__setattr__(self, "regime", regime_of(self.dataset, self.image_size))

    @property
    def data_identity(self) -> str:
        """Name the data, however their path is spelled: by the digest of their content, or by their name."""
        return self.fingerprint or self.dataset

    @cached_property
    def key(self) -> str:
        """A name for this trial, the same on every machine."""
        values = asdict(self)
        if self.fingerprint:
            del values["dataset"]  # a path, which may be spelled in several ways
        if self.weights_digest:
            del values["weights"]  # likewise
        text = json.dumps(without_defaults(values), sort_keys=True)
        return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()

    @cached_property
    def settings_key(self) -> str:
        """A name shared by trials that differ only in their domains."""
        return replace(self, train_domains=(), test_domains=(), run_seed=None).key

    @property
    def seed(self) -> int:
        """The seed of everything random in the run except the splits, which depend on the trial seed alone."""
        if self.run_seed is not None:
            return self.run_seed
        domains = list(self.test_domains)
        return derive_seed(self.data_identity, self.algorithm, domains, self.hparams_seed, self.trial_seed)

    def differences(self, other: "Trial") -> list[str]:
        """Name the fields in which another trial differs; the spelling of a path counts only without a digest."""
        names = [f.name for f in fields(Trial) if getattr(self, f.name) != getattr(other, f.name)]
        digests = {"dataset": "fingerprint", "weights": "weights_digest"}
        same = {name for name, of in digests.items() if getattr(self, of) and getattr(self, of) == getattr(other, of)}
        return [name for name in names if name not in same]

    def to_json(self) -> dict[str, Any]:
        domains = {"train_domains": list(self.train_domains), "test_domains": list(self.test_domains)}
        return without_defaults(asdict(self) | domains)

    @staticmethod
    def from_json(values: Any) -> "Trial":
        """Read a trial from JSON; a wrong type or value is an `InputError`.

        Before there were regimes, all trials were "large".
        """
        return conform(Trial, {"regime": "large", **values} if isinstance(values, dict) else values)


def without_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Leave out fields that came later and have their first value."""
    return {k: v for k, v in values.items() if k not in LATER or v != LATER[k]}
