"""Models of the quick recipe, in the folders of a sweep: one for each target, or for each two left-out domains.

The models are those of ``itta sweep DATA --recipe quick --out sweeps/quick`` (with ``--pairs``: two domains left out).
A model that the folder lacks is trained, so a benchmark needs no sweep before it, and a sweep saves it the training.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from itta.data import open_dataset
from itta.data.dataset import DomainDataset
from itta.recipes import QUICK, RECIPES, follow
from itta.run.train import train
from itta.sweep.launch import open_sweep_data
from itta.sweep.plan import Sweep
from itta.trial import Trial


@dataclass(frozen=True)
class ModelOptions:
    runs: Path = Path("sweeps/quick")  # folder of the sweep that holds the models
    records: Path = Path("docs/results/records")  # for the CSV files
    data: tuple[str, ...] = ("emoji", "PACS")  # names of data sets, or folders root/domain/class/image
    steps: int = QUICK.steps  # of training
    image_size: int = QUICK.image_size
    backbone: str = QUICK.backbone
    weights: str = QUICK.weights
    trained_only: bool = False  # leave out models that are not there yet, instead of training them


def quick_models(
    options: ModelOptions,
    algorithms: tuple[str, ...] = ("erm",),
    seeds: int = 1,
    pairs: bool = False,
    leave_out: Callable[[Trial], bool] = lambda trial: False,
) -> Iterator[tuple[Trial, Path, DomainDataset]]:
    """Yield trial, folder and data set of every model with one domain left out, or with two; train missing ones."""
    own = ("steps", "image_size", "backbone", "weights")
    training = follow(RECIPES["quick"], {name: getattr(options, name) for name in own})
    data = open_sweep_data(options.data, training)
    sweep = Sweep(
        datasets=data.domains, algorithms=algorithms, pairs=pairs, hparams_seeds=1, trial_seeds=seeds,
        by_method={name: RECIPES["quick"].hparams(name, training) for name in algorithms},
        fingerprints=data.fingerprints, **training.shared(),
    )  # fmt: skip
    opened = {name: open_dataset(name, training) for name in data.domains}
    for trial in sweep.trials():
        folder = options.runs / trial.key
        if (len(trial.test_domains) == 2) != pairs or leave_out(trial):
            continue
        if not (folder / "model.json").is_file():
            if options.trained_only:
                continue
            train(trial, folder, opened[trial.dataset])
        yield trial, folder, opened[trial.dataset]


def name_of(trial: Trial) -> str:
    """Name a model for people: data, domains that it learned, method and seed."""
    return f"{Path(trial.dataset).name}-{'+'.join(trial.train_domains)}-{trial.algorithm}-{trial.trial_seed}"
