"""A sweep: data sets × algorithms × targets × hyper-parameter seeds × trial seeds, as a list of trials.

The random search is DomainBed's: hyper-parameter seed 0 means the defaults, and draws and run seeds are its own.

In Search of Lost Domain Generalization. Gulrajani, Lopez-Paz, ICLR 2021. https://arxiv.org/abs/2007.01434
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from itta.errors import InputError, unknown
from itta.hparams import Regime
from itta.records import replace_text
from itta.records.domainbed import dataset_name, run_seed
from itta.trial import Trial

FILE = "sweep.json"
SMALL_IMAGES = 32  # pixels: up to here the hyper-parameters are those of DomainBed's 28-pixel sets
At = Literal["best", "last", "both"]


@dataclass(frozen=True)
class Adaptation:
    """What is done to a trained model at test time."""

    adapters: tuple[str, ...] = ()
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by adapter
    at: At = "best"  # the step with the best source validation, the last one, or both
    batch_size: int = 32

    @property
    def labels(self) -> dict[str, str]:
        """What makes an evaluation another one, in words -> its adapter."""
        found = {}
        for name in self.adapters:
            settings = " ".join(f"{k}={v}" for k, v in sorted(self.settings.get(name, {}).items()))
            found[f"{name} {settings} at={self.at} batch={self.batch_size}".replace("  ", " ")] = name
        return found


@dataclass(frozen=True)
class Sweep:
    datasets: Mapping[str, tuple[str, ...]]  # name or path -> its domains, in their order
    algorithms: tuple[str, ...]
    targets: tuple[str, ...] = ()  # none: every domain
    single_source: bool = False  # from every domain to the others, instead of from all others to each
    pairs: bool = False  # also leave out two domains at a time, for leave-one-domain-out selection
    hparams_seeds: int = 20
    trial_seeds: int = 3
    steps: int = 300
    backbone: str = "efficientnet_lite0"
    weights: str = "imagenet"
    image_size: int = 64
    augment: bool = True
    strict: bool = False
    overrides: Mapping[str, Any] = field(default_factory=dict)
    regime: Literal["auto", "large", "small", "domainnet"] = "auto"
    eval_every: int = 300
    adaptation: Adaptation = field(default_factory=Adaptation)

    def __post_init__(self) -> None:
        every = dict.fromkeys(d for domains in self.datasets.values() for d in domains)
        for target in self.targets:
            if target not in every:
                raise unknown("target", target, list(every))
        for data, domains in self.datasets.items():
            if len(domains) < (3 if self.pairs else 2):
                raise InputError(f"{data} has {len(domains)} domains: too few to keep some out and train on the rest.")
        if self.pairs and self.single_source:
            raise InputError("pairs of left-out domains go with several sources: leave out --pairs or --single-source.")

    def trials(self) -> Iterator[Trial]:
        """Every training, each once, in the order of a sweep of DomainBed."""
        for trial_seed in range(self.trial_seeds):
            for data, domains in self.datasets.items():
                for algorithm in self.algorithms:
                    for train, test in self.cuts(domains):
                        for hparams_seed in range(self.hparams_seeds):
                            yield self.trial(data, algorithm, train, test, hparams_seed, trial_seed)

    def cuts(self, domains: tuple[str, ...]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        """The domains to train on and those to measure on, for each training."""
        wanted = [d for d in domains if d in self.targets or not self.targets]
        if self.single_source:  # one training serves all its targets
            cuts = [((source,), tuple(d for d in wanted if d != source)) for source in domains]
            return [(train, test) for train, test in cuts if test]
        pairs = [pair for pair in combinations(domains, 2) if set(pair) & set(wanted)] if self.pairs else []
        return [(tuple(d for d in domains if d not in test), test) for test in [*((d,) for d in wanted), *pairs]]

    def trial(
        self,
        data: str,
        algorithm: str,
        train: tuple[str, ...],
        test: tuple[str, ...],
        hparams_seed: int,
        trial_seed: int,
    ) -> Trial:
        kept_out = [i for i, domain in enumerate(self.datasets[data]) if domain not in train]
        return Trial(
            dataset=data,
            algorithm=algorithm,
            train_domains=train,
            test_domains=test,
            hparams_seed=hparams_seed,
            trial_seed=trial_seed,
            steps=self.steps,
            backbone=self.backbone,
            weights=self.weights,
            image_size=self.image_size,
            augment=self.augment,
            strict=self.strict,
            overrides=self.overrides,
            regime=regime_of(data, self.image_size) if self.regime == "auto" else self.regime,
            run_seed=run_seed(data, algorithm, kept_out, hparams_seed, trial_seed),
        )

    def adaptation_of(self, trial: Trial) -> Adaptation:
        """What is asked of a trial's model; runs that serve to select by leave-one-domain-out are not adapted."""
        serves = self.pairs and len(trial.test_domains) == 2
        return Adaptation() if serves else self.adaptation

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Sweep":
        lists = {k: tuple(values[k]) for k in ("algorithms", "targets")}
        datasets = {name: tuple(domains) for name, domains in values["datasets"].items()}
        asked = values["adaptation"]
        adaptation = Adaptation(**{**asked, "adapters": tuple(asked["adapters"])})
        return Sweep(**{**values, **lists, "datasets": datasets, "adaptation": adaptation})


def regime_of(data: str, image_size: int) -> Regime:
    """Which of DomainBed's ranges a data set is searched with.

    >>> regime_of("data/PACS", 224), regime_of("digits", 28), regime_of("domain_net", 224)
    ('large', 'small', 'domainnet')
    """
    if dataset_name(data) == "DomainNet":
        return "domainnet"
    return "small" if image_size <= SMALL_IMAGES else "large"


def write_sweep(out: Path, sweep: Sweep) -> None:
    """Leave word in a sweep's folder of what is asked for; the last command counts."""
    out.mkdir(parents=True, exist_ok=True)
    replace_text(out / FILE, json.dumps(asdict(sweep), indent=2) + "\n")


def read_sweep(out: Path) -> Sweep:
    path = out / FILE
    if not path.is_file():
        raise InputError(f"{out} holds no sweep (no {FILE}): give the --out of an itta sweep.")
    try:
        return Sweep.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path} is damaged or not ours ({error!r}): run the same itta sweep again.") from error
