"""Run a sweep: find what is done, do the rest."""

from collections.abc import Sequence
from pathlib import Path

from itta.adapters import find_adapter
from itta.algorithms import find_algorithm
from itta.data import load_dataset
from itta.errors import unknown
from itta.hparams import default, sample
from itta.nn import BACKBONES
from itta.run.job import Job
from itta.sweep.engines import EngineName, Options, Report, quiet, run_jobs
from itta.sweep.plan import Sweep, write_sweep
from itta.sweep.standings import Standing, standings
from itta.trial import Trial

PATIENCE: dict[str, float] = {"local": 5.0, "ray": 60.0, "slurm": 60.0}  # seconds for a lost worker to let go


def domains_of(data: Sequence[str], image_size: int, strict: bool = False) -> dict[str, tuple[str, ...]]:
    """The data sets and their domains, in order."""
    return {name: tuple(load_dataset(name, image_size=image_size, strict=strict).domains) for name in data}


def check_sweep(sweep: Sweep) -> None:
    """Refuse at once what every trial would refuse."""
    if sweep.backbone not in BACKBONES and not sweep.backbone.startswith("timm:"):
        raise unknown("backbone", sweep.backbone, [*BACKBONES, "timm:MODEL"])
    for algorithm in sweep.algorithms:
        sample(find_algorithm(algorithm).Hparams, 0, **sweep.overrides)
    for name in sweep.adaptation.adapters:
        default(find_adapter(name).Hparams, **sweep.adaptation.settings.get(name, {}))
    for name in sweep.adaptation.settings:
        if name not in sweep.adaptation.adapters:
            raise unknown("adapter with settings", name, sweep.adaptation.adapters)


def to_do(found: Sequence[Standing]) -> list[Trial]:
    """What is not done, and last what somebody else seems to be at: it may have died."""
    return [s.trial for word in ("waiting", "failed", "running") for s in found if s.word == word]


def run_sweep(
    sweep: Sweep,
    out: Path,
    engine: EngineName = "local",
    options: Options | None = None,
    threads: int = 1,
    report: Report = quiet,
) -> dict[str, str]:
    """Do what is not done yet; gives the reasons of the trials that failed, by key."""
    check_sweep(sweep)
    write_sweep(out, sweep)
    jobs = {
        trial.key: Job(
            trial,
            out.resolve() / trial.key,
            where(trial.dataset),
            sweep.adaptation_of(trial),
            sweep.eval_every,
            threads,
            PATIENCE[engine],
        )
        for trial in to_do(standings(sweep, out))
    }
    return run_jobs(jobs, engine, options, report)


def where(data: str) -> str:
    """A data set by its name, or its folder by a path that holds in any process."""
    return data if data == "emoji" or not Path(data).is_dir() else str(Path(data).resolve())
