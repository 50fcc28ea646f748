"""Launch a sweep: find the trials that are not done, and run them."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from itta.adapters import find_adapter
from itta.algorithms import find_algorithm
from itta.data import DATASETS, is_name, open_dataset
from itta.data.streams import WHOLE_ORDERS
from itta.errors import InputError, unknown
from itta.hparams import default, sample
from itta.nn import check_backbone
from itta.progress import ReportProgress, silent
from itta.run.job import Job
from itta.settings import DataAccess, TrainSettings
from itta.sweep.engines import EngineOptions, run_jobs
from itta.sweep.plan import FILE, Sweep, read_sweep, write_sweep
from itta.sweep.standings import Standing, standings
from itta.trial import Trial

PATIENCE = {"local": 5.0}  # seconds for a lost worker to release its trial
PATIENCE_ELSEWHERE = 60.0


@dataclass(frozen=True)
class SweepData:
    """The data sets of a sweep: the domains of each, and the digests of those given by a path."""

    domains: Mapping[str, tuple[str, ...]]
    fingerprints: Mapping[str, str]


def open_sweep_data(data: Sequence[str], settings: TrainSettings, access: DataAccess = DataAccess()) -> SweepData:
    """List the domains of each data set; a folder is named by its whole path, so that any process finds it."""
    domains: dict[str, tuple[str, ...]] = {}
    fingerprints: dict[str, str] = {}
    for name in data:
        if is_name(name, access) and not DATASETS[name].in_folders:
            domains[name] = DATASETS[name].domains
            continue
        dataset = open_dataset(name, settings, access)
        known_as = str(dataset.path) if dataset.path else name
        domains[known_as] = tuple(dataset.domains)
        if dataset.fingerprint:
            fingerprints[known_as] = dataset.fingerprint
    return SweepData(domains, fingerprints)


def check_sweep(sweep: Sweep) -> None:
    """Refuse at once what every trial would refuse."""
    check_backbone(sweep.backbone)
    for algorithm in sweep.algorithms:
        sample(find_algorithm(algorithm).Hparams, 0, **sweep.overrides)
    for name in sweep.adaptation.adapters:
        default(find_adapter(name).Hparams, **sweep.adaptation.settings.get(name, {}))
    for order in sweep.adaptation.orders:
        if order not in WHOLE_ORDERS:
            raise unknown("order of a sweep", order, WHOLE_ORDERS)
    for name in sweep.adaptation.settings:
        if name not in sweep.adaptation.adapters:
            raise unknown("adapter with settings", name, sweep.adaptation.adapters)


def refuse_older(sweep: Sweep, out: Path) -> None:
    """Refuse to go on with a sweep of a version that named folders by the spelling of their path."""
    if not (out / FILE).is_file() or not sweep.fingerprints:
        return
    before = read_sweep(out)
    if not before.fingerprints and set(map(resolved, before.datasets)) & set(map(resolved, sweep.fingerprints)):
        raise InputError(
            f"{out} holds a sweep of an earlier version, which named its data by a path: itta report still reads it. "
            "To train more, choose another --out."
        )


def resolved(data: str) -> Path:
    return Path(data).resolve()


def unfinished_trials(found: Sequence[Standing]) -> list[Trial]:
    """List the trials that are not done; last those that another process seems to run, since it may have died."""
    return [s.trial for word in ("waiting", "failed", "silent", "running") for s in found if s.word == word]


@dataclass(frozen=True)
class LaunchSettings:
    """How the trials of a sweep are run."""

    engine: str = "local"
    options: EngineOptions = EngineOptions()
    threads: int = 1
    access: DataAccess = DataAccess()
    keep_checkpoints: bool = False  # of finished trials: three times the size of their models
    most: int | None = None  # run at most this many trials now
    device: str = "auto"
    stand_ins: bool = False  # measure stand-in targets at the end of each training, for estimates without labels


def run_sweep(
    sweep: Sweep, out: Path, settings: LaunchSettings = LaunchSettings(), report: ReportProgress = silent
) -> dict[str, str]:
    """Run the trials that are not done yet; return the reasons of those that failed, by key."""
    check_sweep(sweep)
    refuse_older(sweep, out)
    write_sweep(out, sweep)
    root = settings.access.data_root or os.environ.get("ITTA_DATA")  # another node may have another environment
    access = replace(settings.access, data_root=Path(root).resolve() if root else None)
    jobs = {
        trial.key: Job(
            trial,
            out.resolve() / trial.key,
            adaptation=sweep.adaptation_of(trial),
            eval_every=sweep.eval_every,
            threads=settings.threads,
            patience=PATIENCE.get(settings.engine, PATIENCE_ELSEWHERE),
            access=access,
            keep_checkpoint=settings.keep_checkpoints,
            stand_ins=settings.stand_ins,
            device=settings.device,
            gpus=settings.options.gpus,
        )
        for trial in unfinished_trials(standings(sweep, out))[: settings.most]
    }
    return run_jobs(jobs, settings.engine, settings.options, report)
