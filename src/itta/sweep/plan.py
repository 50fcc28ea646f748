"""A sweep: data sets × algorithms × targets × hyper-parameter seeds × trial seeds, as a list of trials.

The random search is DomainBed's: hyper-parameter seed 0 means the defaults, and draws and run seeds are its own.

In Search of Lost Domain Generalization. Gulrajani, Lopez-Paz, ICLR 2021. https://arxiv.org/abs/2007.01434
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from itta.errors import InputError, unknown
from itta.files import make_folder, replace_text
from itta.records.domainbed import run_seed
from itta.schema import Names, conform, damaged, read_json
from itta.settings import Adaptation, Precision, TrainSettings, check_at_least
from itta.trial import Trial

FILE = "sweep.json"
MAX_TRIALS = 1_000_000  # for each target


class Cut(NamedTuple):
    """The domains of one training."""

    train: tuple[str, ...]
    test: tuple[str, ...]


@dataclass(frozen=True)
class Sweep(TrainSettings):
    datasets: Mapping[str, Names]  # name or path -> its domains, in their order
    algorithms: Names
    targets: Names = ()  # none: every domain
    single_source: bool = False  # train on each single domain, instead of on all but one
    pairs: bool = False  # also leave out two domains at a time, for leave-one-domain-out selection
    hparams_seeds: int = 20
    trial_seeds: int = 3
    overrides: Mapping[str, Any] = field(default_factory=dict)
    by_method: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # algorithm -> overrides of its own
    eval_every: int = 300
    adaptation: Adaptation = field(default_factory=Adaptation)
    fingerprints: Mapping[str, str] = field(default_factory=dict)  # path -> digest of its images
    weights_digest: str = ""
    precision: Precision = "float32"
    elsewhere: Names = ()  # files and folders with records of trials that ran elsewhere

    def __post_init__(self) -> None:
        self.check()
        check_at_least(1, hparams_seeds=self.hparams_seeds, trial_seeds=self.trial_seeds, eval_every=self.eval_every)
        n = self.hparams_seeds * self.trial_seeds * len(self.algorithms)
        if n > MAX_TRIALS:
            raise InputError(
                f"{n:,} trials for each target are more than {MAX_TRIALS:,}: lower --hparams-seeds or --trial-seeds."
            )
        every = dict.fromkeys(d for domains in self.datasets.values() for d in domains)
        for target in self.targets:
            if target not in every:
                raise unknown("target", target, list(every))
        for data, domains in self.datasets.items():
            if len(domains) < (3 if self.pairs else 2):
                raise InputError(f"{data} has {len(domains)} domains: too few to keep some out and train on the rest.")
        if self.pairs and self.single_source:
            raise InputError("pairs of left-out domains need several sources: drop --pairs or --single-source.")

    def trials(self) -> Iterator[Trial]:
        """Yield every training once, in the order of a sweep of DomainBed."""
        for trial_seed in range(self.trial_seeds):
            for data, domains in self.datasets.items():
                for algorithm in self.algorithms:
                    for cut in self.cuts(domains):
                        for hparams_seed in range(self.hparams_seeds):
                            yield self.trial(data, algorithm, cut, hparams_seed, trial_seed)

    def cuts(self, domains: tuple[str, ...]) -> list[Cut]:
        """List the domains to train on and those to measure on, for each training."""
        wanted = [d for d in domains if d in self.targets or not self.targets]
        if self.single_source:  # one training serves all its targets
            cuts = [Cut((source,), tuple(d for d in wanted if d != source)) for source in domains]
            return [cut for cut in cuts if cut.test]
        pairs = [pair for pair in combinations(domains, 2) if set(pair) & set(wanted)] if self.pairs else []
        return [Cut(tuple(d for d in domains if d not in test), test) for test in [*((d,) for d in wanted), *pairs]]

    def trial(self, data: str, algorithm: str, cut: Cut, hparams_seed: int, trial_seed: int) -> Trial:
        """Make one trial; its run seed is DomainBed's."""
        kept_out = [i for i, domain in enumerate(self.datasets[data]) if domain not in cut.train]
        return Trial(
            data,
            algorithm,
            cut.train,
            cut.test,
            hparams_seed,
            trial_seed,
            overrides={**self.by_method.get(algorithm, {}), **self.overrides},
            run_seed=run_seed(data, algorithm, kept_out, hparams_seed, trial_seed),
            fingerprint=self.fingerprints.get(data, ""),
            weights_digest=self.weights_digest,
            precision=self.precision,
            **self.shared(),
        )

    def adaptation_of(self, trial: Trial) -> Adaptation:
        """Return what is asked of a trial's model; runs that serve leave-one-domain-out selection are not adapted."""
        serves = self.pairs and len(trial.test_domains) == 2
        return Adaptation() if serves else self.adaptation

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Sweep":
        return conform(Sweep, values)


def write_sweep(out: Path, sweep: Sweep) -> None:
    """Write the plan into the sweep's folder; the last command counts."""
    make_folder(out)
    replace_text(out / FILE, json.dumps(asdict(sweep), indent=2) + "\n")


def read_sweep(out: Path) -> Sweep:
    """Read the plan of a sweep's folder."""
    path = out / FILE
    if not path.is_file():
        raise InputError(f"{out} holds no sweep (no {FILE}): give the --out of an itta sweep.")
    with damaged(path, "run the same itta sweep again"):
        return Sweep.from_json(read_json(path))
