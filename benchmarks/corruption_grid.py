"""Adapt to damaged images: models with frozen and with live batch normalisation, 12 corruptions at 5 strengths.

A model learns from all domains of a data set by the quick recipe, once with each kind of batch normalisation. Its
held-out images are damaged, and arrive in random order. TENT, EATA, SAR and BN adaptation were made for this ground.
The same command continues after an interruption. The defaults take about 40 minutes of one core. Two commands, one for
each data set, may run at the same time.

python -m benchmarks.corruption_grid --data PACS emoji
python -m benchmarks.corruption_tables
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.command import run_command, write_rows
from itta.adapters import adapt
from itta.algorithms import Algorithm
from itta.data import load_dataset
from itta.data.dataset import DomainDataset, split
from itta.functional.augment import to_float
from itta.functional.corruptions import CORRUPTIONS
from itta.recipes import RECIPES
from itta.records import append_lines, read_lines
from itta.registry import look_up
from itta.run.source_data import without_stand_ins
from itta.run.train import train
from itta.seeds import derive_seed, seed_all
from itta.store.model import load
from itta.trial import Trial

STRENGTHS = (0.2, 0.4, 0.6, 0.8, 1.0)
STYLES = ("edges", "two tones")  # they draw an image anew rather than damage it
DAMAGES = tuple(name for name in CORRUPTIONS if name not in STYLES)
NAME = "corruption_grid.csv"


@dataclass(frozen=True)
class Options:
    out: Path = Path("corruptions")  # models and rows
    records: Path = Path("docs/results/records")  # for corruption_grid.csv
    data: tuple[str, ...] = ("PACS", "emoji")  # "emoji", or data sets root/domain/class/image
    adapters: tuple[str, ...] = ("source", "bn_adapt", "tent", "eata", "sar", "t3a", "itta+")
    bn: tuple[str, ...] = ("frozen", "live")
    corruptions: tuple[str, ...] = DAMAGES
    seeds: int = 1
    images: int = 256  # held-out images, drawn from all domains
    batch_size: int = 32


class Row(NamedTuple):
    data: str
    bn: str
    seed: int
    corruption: str
    strength: float
    adapter: str
    accuracy: float  # in %


def models(options: Options) -> Iterator[tuple[Trial, Path, DomainDataset]]:
    """Yield the trial, the folder and the data of every model."""
    recipe = RECIPES["quick"]
    for seed in range(options.seeds):
        for data in options.data:
            dataset = load_dataset(data, image_size=recipe.training.image_size)
            for bn in options.bn:
                trial = Trial(
                    data, "erm", tuple(dataset.domains), trial_seed=seed, overrides=recipe.hparams("erm"),
                    **(recipe.training.shared() | {"bn": bn}),
                )  # fmt: skip
                yield trial, options.out / "runs" / f"{Path(data).name}-{bn}-{seed}", dataset


def held_out(dataset: DomainDataset, trial: Trial, images: int) -> tuple[Tensor, Tensor]:
    """Draw held-out images from all domains, in random order."""
    splits = split(dataset, trial.trial_seed)
    every = [(domain, i) for domain in dataset.domains for i in splits[domain].held_out]
    rng = np.random.RandomState(derive_seed(trial.trial_seed, "corruptions"))
    drawn = [every[i] for i in rng.permutation(len(every))[:images]]
    x = torch.cat([to_float(dataset.domain(d).read(np.array([i]))) for d, i in drawn])
    return x, torch.tensor([int(dataset.domain(d).labels[i]) for d, i in drawn])


def adapted_accuracy(model: Algorithm, name: str, x: Tensor, y: Tensor, batch_size: int) -> float:
    """Adapt along the images; return the accuracy in %."""
    seed_all(0)
    adapter = adapt(model, name, guard=False if name != "itta+" else None)
    right = sum(int((adapter(a).argmax(1) == b).sum()) for a, b in zip(x.split(batch_size), y.split(batch_size)))
    return round(100 * right / len(y), 2)


def rows_of(
    trial: Trial, model: Algorithm, dataset: DomainDataset, options: Options, known: Sequence[Row]
) -> Iterator[Row]:
    """Run every adapter on the images as they are, and on every corruption and strength; leave out known rows."""
    x, y = held_out(dataset, trial, options.images)
    done = {row[3:6] for row in known}
    cases: list[tuple[str, float]] = [("none", 0.0), *product(options.corruptions, STRENGTHS)]
    for kind, strength in cases:
        generator = torch.Generator().manual_seed(derive_seed(trial.trial_seed, kind, strength))
        damaged = CORRUPTIONS[kind](x, strength, generator) if strength else x
        for name in (name for name in options.adapters if (kind, strength, name) not in done):
            hit = adapted_accuracy(model, name, damaged, y, options.batch_size)
            yield Row(Path(trial.dataset).name, trial.bn, trial.trial_seed, kind, strength, name, hit)


def read_rows(files: Iterable[Path]) -> list[Row]:
    """Read the rows of several models."""
    return [Row(**values) for file in sorted(files) for values in read_lines(file)]


def main(options: Options) -> None:
    for name in options.corruptions:
        look_up("corruption", name, CORRUPTIONS)
    for trial, folder, dataset in models(options):
        with without_stand_ins():
            train(trial, folder, dataset)  # a finished training is not repeated
        file = options.out / f"{folder.name}.jsonl"
        known = read_rows([file]) if file.is_file() else []
        for row in rows_of(trial, load(folder), dataset, options, known):
            append_lines(file, [row._asdict()])
    found = read_rows(options.out.glob("*.jsonl"))  # also those of another command for another data set
    write_rows(options.records / NAME, found, Row._fields)
    print(f"{len(found)} rows are in {options.records / NAME}; python -m benchmarks.corruption_tables makes the tables")


if __name__ == "__main__":
    run_command("corruption_grid", main, Options(), __doc__)
