"""Run itta+ on every target, kind of stream and batch size, on models trained with ERM and with ITTA.

Each network runs once along each stream. itta+, its ablation, T3A and LAME, bare and guarded, are then replayed from
the kept outputs (benchmarks.replay; tests compare the replay with the real methods). Missing models are trained first.
The same command continues after an interruption. It writes itta_plus_grid.csv and itta_plus_ablation.csv to
docs/results/records. Methods that train the network at test time run in benchmarks.itta_plus_rivals.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.command import run_command, write_rows
from benchmarks.quick_models import ModelOptions, name_of, quick_models
from benchmarks.replay import Kept, Variant, features_model, judge, keep, look, points, run
from itta.adapters import Adapter, adapt
from itta.adapters.itta_plus import ANSWERS
from itta.algorithms import Algorithm
from itta.data.dataset import DomainDataset, JoinedImages, split
from itta.data.streams import draw_order
from itta.records import append_lines, read_lines
from itta.seeds import derive_seed
from itta.store.model import load
from itta.trial import Trial

ORDERS, BATCHES = ("iid", "sorted", "dirichlet"), (1, 16, 64)
UNEQUAL = ("zipf1", "zipf2")
DRAWS = 3  # of each unequal stream
DOMAINS = ("in_turn", "gradual", "mixed", "recurring")
FEW = 200  # images of each domain, where there are several


@dataclass(frozen=True)
class Options(ModelOptions):
    out: Path = Path("grid")  # outputs of the models, and rows
    training: tuple[str, ...] = ("erm", "itta")  # algorithms
    seeds: int = 3  # of model, images and stream
    images: int = 600  # of each target, drawn at random
    ablation: int = 1  # seeds with the ablation
    published: bool = False  # take the rows of models that the CSV files have, and measure the other models


class Stream(NamedTuple):
    kind: str  # order of classes, or of domains
    batch: int
    draw: int
    domain: Any  # images
    order: np.ndarray


class Row(NamedTuple):
    dataset: str
    target: str
    training: str
    seed: int
    kind: str
    batch: int
    draw: int
    images: int
    before: float  # accuracy of the trained model, %
    method: str
    gain: float  # points
    note: str = ""  # trips of the guard


def variants() -> dict[str, Variant]:
    """Return the settings of the ablation by name."""
    usual = Variant()
    rules = usual.rules
    off = replace(rules, correction=0.0, neighbours=False)
    found = {"itta+": usual}
    for names in (("restyled",), ("prototypes",), ("plain", "restyled"), ("plain", "prototypes"), ANSWERS):
        found[f"answers alone: {' + '.join(names)}"] = Variant(off, names, margin=0.0)
    for names in (("plain",), ("plain", "restyled"), ("plain", "prototypes")):
        found[f"{' + '.join(names)}, diagnosed"] = Variant(rules, names)
    for w in (0.5, 1.0):
        found[f"prototypes' weight {w:g}"] = usual._replace(weight=w)
    for m in (0.15, 0.3):
        found[f"margin {m:g}"] = usual._replace(margin=m)
    found["no temperature"] = usual._replace(temperature=False)
    found["no neighbours"] = Variant(replace(rules, neighbours=False))
    for c in (0.0, 0.25, 0.5, 1.0):
        found[f"correction {c:g}"] = Variant(replace(rules, correction=c))
    for pull in (0.2, 0.4, 0.6):
        found[f"pull {pull:g}"] = Variant(replace(rules, pull=pull))
    found["usual classes of the sources"] = Variant(replace(rules, usual="sources"))
    for s in (0.5, 0.8, 0.9, 0.95):
        found[f"one chain, {s:g}"] = Variant(replace(rules, stays=(s,)))
    found["neighbours from the start"] = Variant(replace(rules, low=-1e9, high=-1e8))
    found["memory of 100 images"] = Variant(replace(rules, memory=100))
    found["memory of 10,000 images"] = Variant(replace(rules, memory=10_000))
    found["new domains not noticed by the diagnosis"] = usual._replace(notice=False)
    found["order within batches unknown"] = Variant(replace(rules, ordered=False))
    return found


def models(options: Options, known: Sequence[Row] = ()) -> Iterator[tuple[Trial, Path, DomainDataset]]:
    """Yield the models of the grid, without those that have rows already."""
    done = {row[:4] for row in known}
    return quick_models(options, options.training, options.seeds, leave_out=lambda trial: model_of(trial) in done)


def model_of(trial: Trial) -> tuple[str, str, str, int]:
    """Name a model as its rows do."""
    return Path(trial.dataset).name, trial.test_domains[0], trial.algorithm, trial.trial_seed


def streams(trial: Trial, dataset: DomainDataset, images: int) -> Iterator[Stream]:
    """Draw the streams of one target: of one domain, with unequal classes, and of all domains of its data set."""
    (target,), seed = trial.test_domains, trial.trial_seed
    domain = dataset.domain(target)
    drawn = np.random.RandomState(derive_seed(seed, "grid", target)).permutation(len(domain))
    chosen = np.sort(drawn[:images])
    for kind in ORDERS:
        order = chosen[draw_order({"target": domain.labels[chosen]}, kind, seed=seed).index]
        for batch in BATCHES:
            yield Stream(kind, batch, 0, domain, order)
    for kind in UNEQUAL:
        for draw in range(DRAWS):
            order = draw_order({"target": domain.labels}, kind, seed=derive_seed(seed, draw)).index[:images]
            yield Stream(kind, 16, draw, domain, order)
    splits = split(dataset, seed)
    parts = {name: splits[name].held_out[:FEW] for name in trial.train_domains} | {target: drawn[:FEW]}
    joined = JoinedImages({name: dataset.domain(name) for name in parts})
    for kind in DOMAINS:
        drawn_order = draw_order({n: dataset.domain(n).labels[i] for n, i in parts.items()}, "iid", kind, seed=seed)
        indices = list(parts.values())
        order = np.array([joined.starts[d] + indices[d][i] for d, i in zip(drawn_order.domain, drawn_order.index)])
        yield Stream(kind, 16, 0, joined, order)


def adapt_model(trial: Trial, folder: Path, dataset: DomainDataset, options: Options) -> Iterator[Row]:
    """Run all streams of one model. Streams of the same images share the network's outputs; the outputs are kept."""
    trained, every = load(folder), list(streams(trial, dataset, options.images))
    for domain in {id(s.domain): s.domain for s in every}.values():
        here = {file_of(options, folder, s): s for s in every if s.domain is domain}
        missing = {file: stream for file, stream in here.items() if not file.is_file()}
        if missing:
            looked = look(trained, domain, np.concatenate([s.order for s in missing.values()]))
            for file, stream in missing.items():
                file.parent.mkdir(parents=True, exist_ok=True)
                torch.save(keep(trained, looked, stream.order, stream.batch), file.with_suffix(".tmp"))
                file.with_suffix(".tmp").replace(file)
        for file, stream in here.items():
            parts = trial.trial_seed < options.ablation
            yield from rows_of(trial, trained, stream, torch.load(file, weights_only=True), parts)


def file_of(options: Options, folder: Path, stream: Stream) -> Path:
    return options.out / "kept" / folder.name / f"{stream.kind}-{stream.batch}-{stream.draw}.pt"


def rows_of(trial: Trial, trained: Algorithm, stream: Stream, kept: Kept, parts: bool) -> Iterator[Row]:
    """Run every method and every variant of itta+ along one stream."""
    right = float((kept["plain"].argmax(1) == kept["labels"]).double().mean())
    start = Row(
        *model_of(trial), stream.kind, stream.batch, stream.draw, len(kept["labels"]), round(100 * right, 2), "", 0.0
    )  # fmt: skip
    for name, variant in variants().items():
        if name == "itta+" or (parts and stream.batch == 16):
            answers = judge(kept, variant, trained.confusions, stream.batch)
            yield start._replace(method=name, gain=round(points(answers, kept), 3))
    if stream.kind not in ORDERS:
        return
    replayed = features_model(trained)
    for method in ("t3a", "lame"):
        for guard in (False, True):
            adapter = adapt(replayed, method, guard=guard)
            gain = round(points(run(adapter, kept["features"], stream.batch), kept), 3)
            yield start._replace(method=named(method, guard), gain=gain, note=trips(adapter))


def named(method: str, guard: bool) -> str:
    return f"guarded {method}" if guard else method


def trips(adapter: Adapter) -> str:
    """Return how often each watch of the guard tripped."""
    return ", ".join(f"{watch}: {n}" for watch, n in adapter.describe().get("interventions", {}).items())


def read_rows(path: Path) -> list[Row]:
    """Read the rows of a CSV file of this benchmark."""
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    whole, shares = ("seed", "batch", "draw", "images"), ("before", "gain")
    return [Row(**{k: int(v) if k in whole else float(v) if k in shares else v for k, v in r.items()}) for r in lines]


def main(options: Options) -> None:
    files = [options.records / f"itta_plus_{name}.csv" for name in ("grid", "ablation")]
    found = list(dict.fromkeys(row for file in files for row in read_rows(file))) if options.published else []
    for trial, folder, dataset in models(options, found):
        file = options.out / "replayed" / f"{folder.name}.jsonl"
        if not file.is_file():
            rows = list(adapt_model(trial, folder, dataset, options))
            file.parent.mkdir(parents=True, exist_ok=True)
            append_lines(file, [row._asdict() for row in rows])
            print(name_of(trial), f"{np.mean([r.gain for r in rows if r.method == 'itta+']):+.2f}", flush=True)
        found += [Row(**values) for values in read_lines(file)]
    write_rows(files[0], [row for row in found if is_method(row.method)], Row._fields)
    parts = [row for row in found if row.batch == 16 and (row.method == "itta+" or not is_method(row.method))]
    write_rows(files[1], parts, Row._fields)


def is_method(name: str) -> bool:
    return name in ("itta+", "t3a", "lame", "guarded t3a", "guarded lame")


if __name__ == "__main__":
    run_command("itta_plus_grid", main, Options(), __doc__)
