"""Why itta+ loses on some streams of unequal classes, what a margin prevents, and what a few counted images bring.

First on source domains, on the streams of benchmarks.itta_plus_selection; then on targets, on the streams of
benchmarks.itta_plus_grid, with models of ERM. What is missing is trained and computed first. A margin prevents losses,
and gains too. Further rows know something that answers cannot tell: the classes of some images drawn at random, the
class frequencies of the whole stream, or the confusions of the model on the target. The rows go to
docs/results/records/itta_plus_bounds.csv, the tables to docs/results/itta_plus_bounds.md.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.command import run_command, write_rows
from benchmarks.itta_plus_grid import streams
from benchmarks.itta_plus_selection import ALLOWED, ONE, SEVERAL, Evidence, collect
from benchmarks.itta_plus_selection import Options as SelectionOptions
from benchmarks.pages import write_between
from benchmarks.quick_models import name_of, quick_models
from benchmarks.replay import Variant, average, diagnose, keep, look, points, preferred
from itta.adapters.frequencies import ESTIMATE_COUNTS_AS, Frequencies
from itta.data.dataset import DomainDataset
from itta.functional.priors import mean_answers
from itta.report.tables import Table
from itta.seeds import derive_seed
from itta.store.model import load
from itta.trial import Trial

MARGINS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7)
COUNTED = (20, 50, 100)  # images
CHOSEN_BY = (20, 50)  # of them
SAME = 0.05  # points that count as no difference
COUNTS_AS = (10.0, 20.0, 40.0, 80.0)  # candidates for the weight of the estimate, in images
UNEQUAL = ("zipf1", "zipf2")
KNOWN_PULL = 0.02  # of true confusions: they need hardly any


@dataclass(frozen=True)
class Options(SelectionOptions):
    page: Path = Path("docs/results/itta_plus_bounds.md")  # with two comments around the tables
    target_seeds: int = 1  # of the models whose targets are measured


class Row(NamedTuple):
    domains: str  # sources or targets
    setting: str
    iid: float  # points gained, mean over cells
    zipf1: float
    zipf2: float
    sorted: float
    dirichlet: float
    several: float  # streams of several domains
    worst_equal: float  # cell of random order: sources and target, mean over seeds
    worst_unequal: float  # cell of Zipf's law, mean over draws and seeds
    below: float  # streams of several domains that lose more than half a point, %


class Gain(NamedTuple):
    kind: str
    cell: str  # sources and target
    points: float


def cell_of(e: Evidence) -> str:
    """Name the sources and the target, without the seed of the model.

    >>> cell_of(Evidence("PACS-art_painting+photo-erm-1@sketch", "iid", {}, {}, 0.0))
    'PACS-art_painting+photo-erm@sketch'
    """
    model, _, target = e.cell.partition("@")
    return f"{model.rpartition('-')[0]}@{target}"


def cells(gains: Iterable[Gain], *kinds: str) -> list[float]:
    """Return the gains of each cell, averaged over draws and seeds."""
    found: dict[tuple[str, str], list[float]] = {}
    for gain in gains:
        if gain.kind in kinds:
            found.setdefault((gain.kind, gain.cell), []).append(gain.points)
    return [mean(of) for of in found.values()]


def row_of(setting: str, gains: list[Gain], domains: str = "sources") -> Row:
    several = [gain.points for gain in gains if gain.kind in SEVERAL]
    means = [mean(cells(gains, kind)) for kind in ("iid", *UNEQUAL, "sorted", "dirichlet")]
    worst = [min(cells(gains, "iid")), min(cells(gains, *UNEQUAL))]
    below = 100 * mean(gain < ALLOWED for gain in several)
    return Row(domains, setting, *(round(value, 2) for value in (*means, mean(several), *worst, below)))


def margin_rows(found: list[Evidence]) -> Iterator[Row]:
    """One diagnosis serves every margin."""
    diagnosed = [diagnose(e.kept, Variant(), e.known) for e in found]
    for margin in MARGINS:
        answers = (preferred(e.kept, margin, *of) for e, of in zip(found, diagnosed))
        gains = [Gain(e.kind, cell_of(e), points(a, e.kept)) for e, a in zip(found, answers)]
        yield row_of("itta+" if margin == 0 else f"margin {margin:g}", gains)


Answer = Callable[[Evidence, np.ndarray], Tensor | Frequencies]  # of a stream and its labels


def informed_row(setting: str, found: list[Evidence], tell: Answer, domains: str = "sources") -> Row:
    """A setting that knows something from the labels: the answers to a stream follow, or are told as well."""
    gains = []
    for e in found:
        told = tell(e, e.kept["labels"].numpy())
        answers = diagnose(e.kept, Variant(), e.known, frequencies=told)[0] if isinstance(told, Frequencies) else told
        gains.append(Gain(e.kind, cell_of(e), points(answers, e.kept)))
    return row_of(setting, gains, domains)


def count(images: int, estimate: float = ESTIMATE_COUNTS_AS) -> Answer:
    """Count the classes of some images, drawn at random from the stream."""

    def counted(e: Evidence, labels: np.ndarray) -> Frequencies:
        rng = np.random.RandomState(derive_seed(0, "counted", e.cell, e.kind, len(labels)))
        return Frequencies(np.bincount(rng.choice(labels, images), minlength=e.kept["plain"].shape[1]), estimate)

    return counted


def all_counted(e: Evidence, labels: np.ndarray) -> Frequencies:
    shares = np.bincount(labels, minlength=e.kept["plain"].shape[1]) + 0.5
    return Frequencies(shares / shares.sum(), 0.0)


def with_true_confusions(e: Evidence, labels: np.ndarray) -> Tensor:
    """Use the confusions of the averaged answers on the stream itself."""
    variant = Variant()
    variant = variant._replace(rules=replace(variant.rules, pull=KNOWN_PULL))
    true = mean_answers(average(e.kept, variant), torch.from_numpy(labels))
    return diagnose(e.kept, variant, {**e.known, "mean": true})[0]


def source_rows(found: list[Evidence]) -> Iterator[Row]:
    yield from margin_rows(found)
    for images in COUNTED:
        yield informed_row(counted_name(images), found, count(images))
    yield informed_row("true class frequencies", found, all_counted)
    yield informed_row("true confusions", found, with_true_confusions)
    for images in CHOSEN_BY:
        for weight in COUNTS_AS:
            yield informed_row(f"{counted_name(images)}, estimate as {weight:g}", found, count(images, weight))


def counted_name(images: int) -> str:
    return f"{images} counted images"


def choose(rows: Sequence[Row]) -> float:
    """Return the smallest weight of the estimate with which streams of several domains gain what they gain without."""
    several = {row.setting: row.several for row in rows if row.domains == "sources"}

    def enough(weight: float) -> bool:
        names = [f"{counted_name(images)}, estimate as {weight:g}" for images in CHOSEN_BY]
        return all(several[name] > several["itta+"] - SAME for name in names)

    return min(filter(enough, COUNTS_AS))


def target_rows(found: list[Evidence]) -> Iterator[Row]:
    gains = [Gain(e.kind, cell_of(e), points(diagnose(e.kept, Variant(), e.known)[0], e.kept)) for e in found]
    yield row_of("itta+", gains, "targets")
    for images in COUNTED:
        yield informed_row(counted_name(images), found, count(images), "targets")
    yield informed_row("true class frequencies", found, all_counted, "targets")


def collect_targets(options: Options) -> Iterator[Evidence]:
    """Run the models of ERM along the streams of their targets, in batches of 16; the outputs are kept."""
    for trial, folder, dataset in quick_models(options, seeds=options.target_seeds):
        file = options.out / "targets" / f"{name_of(trial)}.pt"
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            found = [tuple(e) for e in along_target(trial, folder, dataset, options.images)]
            torch.save(found, file.with_suffix(".tmp"))
            file.with_suffix(".tmp").replace(file)
        yield from (Evidence(*values) for values in torch.load(file, weights_only=True))


def along_target(trial: Trial, folder: Path, dataset: DomainDataset, images: int) -> Iterator[Evidence]:
    trained, cell = load(folder), f"{name_of(trial)}@{trial.test_domains[0]}"
    every = [s for s in streams(trial, dataset, images) if s.batch == 16]
    for domain in {id(s.domain): s.domain for s in every}.values():
        here = [s for s in every if s.domain is domain]
        looked = look(trained, domain, np.concatenate([s.order for s in here]))
        for s in here:
            kept = {k: v for k, v in keep(trained, looked, s.order, 16).items() if k != "features"}
            yield Evidence(cell, s.kind, kept, trained.confusions or {}, 0.0)


def table(title: str, found: Iterable[Row], meaning: str) -> str:
    lines = [[r.setting.replace(" images,", ","), *(f"{v:+.1f}" for v in r[2:10]), f"{r.below:.1f}"] for r in found]
    heads = ["setting", "random", "Zipf 1", "Zipf 2", "sorted", "Dirichlet", "several"]
    heads += ["worst, random", "worst, Zipf", "several below −0.5, %"]
    return f"### {title}\n\n{Table(title, heads, lines).to_markdown()}\n\n{meaning}"


def tables(rows: Sequence[Row]) -> str:
    sources = [r for r in rows if r.domains == "sources" and "estimate" not in r.setting]
    weights = [r for r in rows if "estimate" in r.setting]
    targets = [r for r in rows if r.domains == "targets"]
    parts = (
        table("On source domains", sources, "A margin loses less and gains less. Counted images gain more."),
        table("How much the estimate counts", weights, f"The rule takes {choose(rows):g} images."),
        table("On targets", targets, "Counted images gain there as well."),
    )
    return "\n\n".join(parts)


def main(options: Options) -> None:
    found = [e for e in collect(options) if e.kind in (*ONE, *SEVERAL)]
    rows = [*source_rows(found), *target_rows(list(collect_targets(options)))]
    write_rows(options.records / "itta_plus_bounds.csv", rows, Row._fields)
    write_between(options.page, "itta_plus_bounds", tables(rows))
    print(tables(rows))


if __name__ == "__main__":
    run_command("itta_plus_bounds", main, Options(), __doc__)
