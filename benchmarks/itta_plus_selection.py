"""Choose the constants of itta+ on source domains only, and print them.

For every pair of domains of a data set: train on the two, and adapt to each of the others, in all kinds of streams, and
to held-out images of the two with unequal classes. A user has the same before a target comes: sources to train on, and
another source to try the constants on. Models of three domains, and models that learned to ignore styles, see about
half of the distances that these models see; so each setting also runs with half of the distances.
The rule: a lost point counts twenty times. A cell is a model, a domain and a kind of stream, averaged over its draws.
Of all combinations of values, the one with the highest mean of gain − 20·(points lost beyond half a point) wins.
The limit for a new domain is the smallest value that no stream of one domain exceeds. The network runs once; a setting
then takes seconds. The same command continues after an interruption. The tried values go to a CSV file, the chosen ones
to a JSON file.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.command import run_command, write_rows
from benchmarks.quick_models import ModelOptions, name_of, quick_models
from benchmarks.replay import Kept, Looked, Variant, diagnose, itta_plus, keep, look, points, preferred
from itta.adapters.diagnosis import Rules
from itta.adapters.target_style import flat_styles
from itta.algorithms import Algorithm
from itta.data.dataset import DomainDataset, JoinedImages, split
from itta.data.streams import draw_order
from itta.files import replace_text
from itta.records import append_lines, read_lines
from itta.run.source_data import class_shares
from itta.seeds import derive_seed
from itta.store.model import load
from itta.trial import Trial

ONE = ("iid", "sorted", "dirichlet", "runs", "zipf1", "zipf2")
SEVERAL = ("in_turn", "gradual", "mixed", "recurring")
OWN = ("own_zipf1", "own_zipf2")  # held-out images of the model's own domains
KINDS = (*ONE, *SEVERAL, *OWN)
DRAWS = {"zipf1": 3, "zipf2": 3}  # of short streams there are more
FEW = 150  # images of each domain, where there are several
ALLOWED = -0.5  # points of a cell that count as no loss
AVERSION = 20  # gained points that make up for a lost one
CHANGES = (0.5, 1.0, 1.5, 2.0, 3.0)  # candidates for the limit
GRID: dict[str, tuple[Any, ...]] = {
    "weight": (0.25, 0.5),
    "pull": (0.4, 0.6, 0.8, 1.0, 1.2),
    "rise": (7.0, 10.0, 14.0, 20.0, 28.0),
    "usual": ("between",),
}
SCALES = (1.0, 0.5)  # of the distances: other models have smaller ones, see below
MARGINS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0)
EARLIER = {"correction": 1.0, "stays": (0.5, 0.95), "low": 1.5, "high": 4.0}  # chosen in the second round


@dataclass(frozen=True)
class Options(ModelOptions):
    out: Path = Path("grid")  # outputs of the models along the streams
    images: int = 600  # of each domain
    seeds: int = 2  # of the models: those of one seed decide by chance


class Evidence(NamedTuple):
    """The answers of a model along one stream."""

    cell: str  # model and domain
    kind: str
    kept: Kept
    known: dict[str, Tensor]  # the model's confusions, temperature and class prior
    jump: float  # the largest jump of the style


class Tried(NamedTuple):
    weight: float
    pull: float
    rise: float
    usual: str
    margin: float
    lost: float  # points beyond the allowed ones, mean over cells
    worst: float  # cell, points
    mean: float  # of the kinds
    iid: float
    sorted: float
    dirichlet: float
    runs: float
    zipf1: float
    zipf2: float
    in_turn: float
    gradual: float
    mixed: float
    recurring: float
    own_zipf1: float
    own_zipf2: float


def collect(options: Options) -> Iterator[Evidence]:
    for trial, folder, dataset in quick_models(options, seeds=options.seeds, pairs=True):
        for target in (*trial.test_domains, "own"):
            file = options.out / "evidence" / f"{name_of(trial)}@{target}.pt"
            if not file.is_file():
                file.parent.mkdir(parents=True, exist_ok=True)
                found = (
                    look_at_home(load(folder), dataset, trial, options.images) if target == "own"
                    else look_along(load(folder), dataset, trial, target, options.images)
                )  # fmt: skip
                torch.save([tuple(e._replace(cell=file.stem)) for e in found], file.with_suffix(".tmp"))
                file.with_suffix(".tmp").replace(file)
            yield from (Evidence(*values) for values in torch.load(file, weights_only=True))


def look_along(
    trained: Algorithm, dataset: DomainDataset, trial: Trial, target: str, images: int
) -> Iterator[Evidence]:
    """All streams of a model and a domain: of the domain alone, and together with the model's sources."""
    splits = split(dataset, trial.trial_seed)
    known = known_of(trained, dataset, trial)
    domain = dataset.domain(target)
    drawn = np.random.RandomState(derive_seed(0, "grid", target)).permutation(len(domain))
    chosen, orders = np.sort(drawn[:images]), []
    for kind in ONE:
        for draw in range(DRAWS.get(kind, 1)):
            of = chosen if kind not in DRAWS else np.arange(len(domain))
            orders.append((kind, of[draw_order({"target": domain.labels[of]}, kind, seed=draw).index][:images]))
    yield from along(trained, known, look(trained, domain, np.concatenate([o for _, o in orders])), orders)
    parts = {name: splits[name].held_out[:FEW] for name in trial.train_domains} | {target: drawn[:FEW]}
    joined, orders = JoinedImages({name: dataset.domain(name) for name in parts}), []
    starts = dict(zip(parts, joined.starts))
    for kind in SEVERAL:
        for names in (list(parts), list(parts)[::-1]):  # the target comes last, and first
            order = draw_order({n: dataset.domain(n).labels[parts[n]] for n in names}, "iid", kind)
            rows = [starts[names[d]] + parts[names[d]][i] for d, i in zip(order.domain, order.index)]
            orders.append((kind, np.array(rows)))
    yield from along(trained, known, look(trained, joined, np.concatenate([o for _, o in orders])), orders)


def look_at_home(trained: Algorithm, dataset: DomainDataset, trial: Trial, images: int) -> Iterator[Evidence]:
    """Streams of unequal classes from held-out images of the model's own domains: only the frequencies are new."""
    splits, orders = split(dataset, trial.trial_seed), []
    parts = {name: splits[name].held_out for name in trial.train_domains}
    joined = JoinedImages({name: dataset.domain(name) for name in parts})
    rows = np.concatenate([start + parts[name] for name, start in zip(parts, joined.starts)])
    labels = np.concatenate([dataset.domain(name).labels[of] for name, of in parts.items()])
    for kind in OWN:
        for draw in range(3):
            order = draw_order({"own": labels}, kind.removeprefix("own_"), seed=draw)
            orders.append((kind, rows[order.index][:images]))
    looked = look(trained, joined, np.concatenate([o for _, o in orders]))
    yield from along(trained, known_of(trained, dataset, trial), looked, orders)


def known_of(trained: Algorithm, dataset: DomainDataset, trial: Trial) -> dict[str, Tensor]:
    assert trained.confusions is not None
    return {**trained.confusions, "prior": class_shares(dataset, split(dataset, trial.trial_seed), trial)}


def along(
    trained: Algorithm, known: dict[str, Tensor], looked: Looked, orders: list[tuple[str, np.ndarray]]
) -> Iterator[Evidence]:
    for kind, order in orders:
        kept = keep(trained, looked, order, 16)
        styles = looked.styles[torch.tensor([looked.row[int(i)] for i in order])]
        yield Evidence(
            "", kind, {k: v for k, v in kept.items() if k != "features"}, known, largest_jump(trained, styles)
        )


def largest_jump(trained: Algorithm, styles: Tensor) -> float:
    target = itta_plus(trained).style
    assert target is not None
    return float(target.change.jumps(flat_styles(styles).numpy()).max())


def score(found: list[Evidence], variant: Variant) -> Iterator[Tried]:
    """Measure a setting with every margin: a margin needs no new diagnosis."""
    gains: dict[float, dict[tuple[str, str], list[float]]] = {margin: {} for margin in MARGINS}
    rules = variant.rules
    for (cell, kind, kept, known, _), scale in product(found, SCALES):
        diagnosed = diagnose(kept, variant._replace(rules=replace(rules, rise=scale * rules.rise)), known)
        for margin, cells in gains.items():
            cells.setdefault((kind, f"{cell}, {scale:g}"), []).append(points(preferred(kept, margin, *diagnosed), kept))
    for margin, cells in gains.items():
        means = {key: mean(of) for key, of in cells.items()}
        kinds = [mean(gain for (kind, _), gain in means.items() if kind == k) for k in KINDS]
        lost = mean(max(0.0, ALLOWED - gain) for gain in means.values())
        numbers = (round(value, 3) for value in (lost, min(means.values()), mean(kinds), *kinds))
        yield Tried(variant.weight, rules.pull, rules.rise, rules.usual, margin, *numbers)


def worth(tried: Tried) -> float:
    """Return the mean gain, in which a point lost beyond the allowed ones counts `AVERSION` times."""
    return tried.mean - AVERSION * tried.lost


def choose(found: list[Evidence], folder: Path) -> tuple[dict[str, Any], list[Tried]]:
    """Try all combinations; return the constants of the best, and everything that was tried. The folder keeps it."""
    tried: list[Tried] = []
    for values in product(*GRID.values()):
        file = folder / f"{'-'.join(map(str, values))}.jsonl"
        if not file.is_file():
            weight, *own = values
            rules = Rules(**dict(zip(list(GRID)[1:], own)), **EARLIER)  # type: ignore[arg-type]
            rows = [row._asdict() for row in score(found, Variant(rules, weight=weight))]
            folder.mkdir(parents=True, exist_ok=True)
            append_lines(file, rows)
        tried += [Tried(**row) for row in read_lines(file)]
        print(*max(tried, key=worth), flush=True)
    best = max(tried, key=worth)
    jump = max(e.jump for e in found if e.kind in ONE)
    print("largest jump of the style on a stream of one domain", round(jump, 3))
    change = min(c for c in CHANGES if c > jump)
    return {**{name: getattr(best, name) for name in (*GRID, "margin")}, **EARLIER, "change": change}, tried


def main(options: Options) -> None:
    chosen, tried = choose(list(collect(options)), options.out / "tried")
    write_rows(options.records / "itta_plus_selection.csv", tried, Tried._fields)
    replace_text(options.records / "itta_plus_selection.json", json.dumps(chosen, indent=2) + "\n")
    print(json.dumps(chosen))


if __name__ == "__main__":
    run_command("itta_plus_selection", main, Options(), __doc__)
