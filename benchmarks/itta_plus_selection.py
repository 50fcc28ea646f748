"""Choose the constants of itta+ on source domains only, and print them.

For every pair of domains of a data set: train on the two, and adapt to each of the others, in all kinds of streams.
A pair and its stream belong to what somebody has before a target comes: two sources to train on, a third to try on.
One constant after another is set to the value with the best score, the mean gain over the kinds of streams, where a
point that a stream loses counts as five. What the network says is computed once; a setting then takes seconds.
The same command goes on after an interruption. What was tried goes to a CSV file, what was chosen to a JSON file.
"""

import csv
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import torch
import tyro
from torch import Tensor

from benchmarks.replay import keep, look
from itta.adapters.diagnosis import Diagnosis, Rules
from itta.adapters.itta_plus import ANSWERS
from itta.data import load_dataset
from itta.data.dataset import DomainDataset
from itta.data.streams import draw_order
from itta.errors import InputError
from itta.files import replace_text
from itta.functional.entropy import log_mean_probability
from itta.run.train import train
from itta.seeds import derive_seed
from itta.store.model import load
from itta.trial import Trial

KINDS = ("iid", "sorted", "dirichlet", "runs", "zipf1", "zipf2")
DRAWS = {"zipf1": 3, "zipf2": 3}  # of short streams there are more
START = Rules(correction=0.5, pull=0.2, stays=(0.5, 0.8, 0.95), low=3.0, high=7.0)  # before anything is chosen
LOSS = 5.0  # times that a lost point counts
GRID: dict[str, tuple[Any, ...]] = {
    "correction": (0.0, 0.5, 1.0),
    "stays": ((0.8,), (0.95,), (0.5, 0.95), (0.5, 0.8, 0.95)),
    "low": (2.0, 3.0, 4.0),
    "high": (5.0, 7.0),
    "pull": (0.1, 0.2, 0.4, 0.8),
}


@dataclass(frozen=True)
class Options:
    out: Path = Path("grid")  # models and what they said
    records: Path = Path("docs/results/records")  # what was tried, and what was chosen
    data: tuple[str, ...] = ("emoji", "PACS")  # "emoji", or folders root/domain/class/image
    images: int = 600  # of each domain
    steps: int = 150  # of training
    batch_size: int = 12  # images of each source domain in a training step
    lr: float = 2e-4  # of training
    image_size: int = 64
    backbone: str = "efficientnet_lite0"
    weights: str = "imagenet"


class Evidence(NamedTuple):
    """The averaged answers along one stream, and what the model carries to judge them."""

    dataset: str
    sources: tuple[str, str]
    target: str
    kind: str
    labels: Tensor
    plain: Tensor  # logits [N, C]
    averaged: Tensor  # log-probabilities [N, C]
    confusions: Tensor


class Tried(NamedTuple):
    constant: str
    value: str
    score: float
    worst: float  # stream, points
    iid: float
    sorted: float
    dirichlet: float
    runs: float
    zipf1: float
    zipf2: float


def collect(options: Options) -> Iterator[Evidence]:
    for data in options.data:
        dataset = load_dataset(data, image_size=options.image_size)
        for pair in combinations(dataset.domains, 2):
            others = [d for d in dataset.domains if d not in pair]
            folder = options.out / "runs" / f"{Path(data).name}-from-{pair[0]}+{pair[1]}-0-erm"
            if not (folder / "model.json").is_file():
                train(trial_of(options, data, pair, others[0]), folder, dataset)
            for target in others:
                yield from look_along(options, data, dataset, folder, pair, target)


def trial_of(options: Options, data: str, pair: tuple[str, str], target: str) -> Trial:
    return Trial(
        data, "erm", pair, (target,), steps=options.steps, backbone=options.backbone, weights=options.weights,
        image_size=options.image_size, augment=False, overrides={"lr": options.lr, "batch_size": options.batch_size},
    )  # fmt: skip


def look_along(
    options: Options, data: str, dataset: DomainDataset, folder: Path, pair: tuple[str, str], target: str
) -> Iterator[Evidence]:
    """Every stream of a model and a domain; from a file, if it is known already."""
    kept = options.out / "evidence" / f"{folder.name}@{target}.pt"
    if not kept.is_file():
        trained = load(folder)
        domain = dataset.domain(target)
        drawn = np.random.RandomState(derive_seed(0, "grid", target)).permutation(len(domain))
        chosen = np.sort(drawn[: options.images])
        orders = [(kind, draw) for kind in KINDS for draw in range(DRAWS.get(kind, 1))]
        streams = []
        for kind, draw in orders:
            of = chosen if kind not in DRAWS else np.arange(len(domain))
            streams.append(of[draw_order({"target": domain.labels[of]}, kind, seed=draw).index][: options.images])
        looked = look(trained, domain, np.concatenate(streams))
        assert trained.confusions is not None
        found = []
        for (kind, _), order in zip(orders, streams):
            said = keep(trained, looked, order, 16)
            mixed = log_mean_probability([said[f"{name} answer"] for name in ANSWERS])
            found.append((kind, said["labels"], said["plain"], mixed, trained.confusions["mean"]))
        kept.parent.mkdir(parents=True, exist_ok=True)
        torch.save(found, kept)
    for kind, *tensors in torch.load(kept, weights_only=True):
        yield Evidence(Path(data).name, pair, target, kind, *tensors)


def gain(evidence: Evidence, rules: Rules) -> float:
    """Points over the trained model along one stream."""
    judge = Diagnosis(evidence.averaged.shape[1], rules, evidence.confusions)
    right = judge(evidence.averaged).posterior.argmax(1) == evidence.labels
    before = evidence.plain.argmax(1) == evidence.labels
    return 100 * float(right.float().mean() - before.float().mean())


def score(found: list[Evidence], rules: Rules) -> tuple[float, float, list[float]]:
    """The score, the worst stream, and the mean gain of each kind."""
    gains: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for evidence in found:
        gains[evidence.kind].append(gain(evidence, rules))
    weighed = [mean(g if g > 0 else LOSS * g for g in of) for of in gains.values()]
    return mean(weighed), min(map(min, gains.values())), [mean(of) for of in gains.values()]


def choose(found: list[Evidence]) -> tuple[Rules, list[Tried]]:
    """One constant after another, each at the best of its values; the others as chosen before, or as they are."""
    rules, tried = START, []
    for constant, values in GRID.items():
        best = -np.inf
        for value in values:
            candidate = Rules(**asdict(rules) | {constant: value})
            if candidate.high <= candidate.low:
                continue
            total, worst, kinds = score(found, candidate)
            tried.append(Tried(constant, str(value), round(total, 3), round(worst, 2), *(round(k, 2) for k in kinds)))
            print(*tried[-1], flush=True)
            if total > best:
                best, chosen = total, candidate
        rules = chosen
    return rules, tried


def main(options: Options) -> None:
    found = list(collect(options))
    rules, tried = choose(found)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Tried._fields)
    writer.writerows(tried)
    replace_text(options.records / "itta_plus_selection.csv", text.getvalue())
    chosen = {name: getattr(rules, name) for name in GRID}
    replace_text(options.records / "itta_plus_selection.json", json.dumps(chosen, indent=2) + "\n")
    print(json.dumps(chosen))


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        main(tyro.cli(Options, prog="python -m benchmarks.itta_plus_selection", description=__doc__))
    except InputError as error:
        sys.exit(f"error: {error}")
