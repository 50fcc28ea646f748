"""Choose the constants of itta+ on source domains only, and print them.

For every pair of domains of a data set: train on the two, and adapt to each of the others, in all kinds of streams, and
to held-out images of the two with unequal classes. A user has the same before a target comes: sources to train on, and
another source to try the constants on. Models of three domains, and models that learned to ignore styles, see about
half of the distances between answers that these models see; so each setting also runs with half of them.
The rule: a lost point counts twenty times. A cell is a model, a domain and a kind of stream, averaged over its draws.
Of all combinations of values, the one with the highest mean of gain − 20·(points lost beyond half a point) wins.
The limit for a new domain is the smallest value that no stream of one domain exceeds. The network runs once, and its
outputs are kept, so the same command continues after an interruption. The tried values go to a CSV file, the chosen
ones to a JSON file.
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
from rich.progress import track
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
MARGINS = (0.0, 0.15, 0.3, 0.5, 1.0)  # for all images
HOME_MARGINS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)  # for images that look like the sources
BANDS = ((1.1, 1.3), (1.1, 1.5), (1.0, 1.5), (1.2, 1.8))  # distances of the style: near, far
CHOSEN = ("margin", "home_margin", "near", "far")
SCALES = (1.0, 0.5)  # of the distances between answers: other models have smaller ones, see above
EARLIER: dict[str, Any] = {  # chosen in earlier rounds
    "weight": 0.25, "correction": 1.0, "pull": 1.2, "rise": 10.0, "usual": "between",
    "stays": (0.5, 0.95), "low": 1.5, "high": 4.0,
}  # fmt: skip


@dataclass(frozen=True)
class Options(ModelOptions):
    out: Path = Path("grid")  # outputs of the models along the streams
    images: int = 600  # of each domain
    seeds: int = 2  # of the models: those of one seed alone decide by chance


class Evidence(NamedTuple):
    """The answers of a model along one stream."""

    cell: str  # model and domain
    kind: str
    kept: Kept
    known: dict[str, Tensor]  # the model's confusions, temperature and class prior
    jump: float  # the largest jump of the style


class Tried(NamedTuple):
    margin: float
    home_margin: float
    near: float
    far: float
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


def settings() -> Iterator[Variant]:
    """Yield the settings to try: the constants of earlier rounds, a margin, and one for images like the sources."""
    before = Variant(Rules(**{k: v for k, v in EARLIER.items() if k != "weight"}), weight=EARLIER["weight"])
    for margin, home_margin, (near, far) in product(MARGINS, HOME_MARGINS, BANDS):
        yield before._replace(margin=margin, home_margin=home_margin, near=near, far=far)


def score(found: list[Evidence]) -> Iterator[Tried]:
    """Measure all settings along all streams: a margin needs no new diagnosis."""
    tried = list(settings())
    gains: list[dict[tuple[str, str], list[float]]] = [{} for _ in tried]
    for (cell, kind, kept, known, _), scale in track(list(product(found, SCALES)), "streams"):
        rules = replace(tried[0].rules, rise=scale * tried[0].rules.rise)
        diagnosed = diagnose(kept, tried[0]._replace(rules=rules), known)
        for variant, cells in zip(tried, gains):
            answers = preferred(kept, variant, diagnosed)
            cells.setdefault((kind, f"{cell}, {scale:g}"), []).append(points(answers, kept))
    for variant, cells in zip(tried, gains):
        means = {key: mean(of) for key, of in cells.items()}
        kinds = [mean(gain for (kind, _), gain in means.items() if kind == k) for k in KINDS]
        lost = mean(max(0.0, ALLOWED - gain) for gain in means.values())
        numbers = (round(value, 3) for value in (lost, min(means.values()), mean(kinds), *kinds))
        yield Tried(variant.margin, variant.home_margin, variant.near, variant.far, *numbers)


def worth(tried: Tried) -> float:
    """Return the mean gain, in which a point lost beyond the allowed ones counts `AVERSION` times."""
    return tried.mean - AVERSION * tried.lost


def choose(found: list[Evidence]) -> tuple[dict[str, Any], list[Tried]]:
    """Try all combinations; return the constants of the best, and everything that was tried."""
    tried = list(score(found))
    best = max(tried, key=worth)
    print(best)
    jump = max(e.jump for e in found if e.kind in ONE)
    print("largest jump of the style on a stream of one domain", round(jump, 3))
    change = min(c for c in CHANGES if c > jump)
    return {**{name: getattr(best, name) for name in CHOSEN}, **EARLIER, "change": change}, tried


def main(options: Options) -> None:
    chosen, tried = choose(list(collect(options)))
    write_rows(options.records / "itta_plus_selection.csv", tried, Tried._fields)
    replace_text(options.records / "itta_plus_selection.json", json.dumps(chosen, indent=2) + "\n")
    print(json.dumps(chosen))


if __name__ == "__main__":
    run_command("itta_plus_selection", main, Options(), __doc__)
