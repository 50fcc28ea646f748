"""The demo: a pretrained network learns three drawing styles, then adapts to a fourth without labels."""

import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from itta import records
from itta.adapters import adapt
from itta.data import load_dataset
from itta.data.emoji import STYLES
from itta.data.target import open_stream
from itta.explain.adapted_stream import AdaptedStream
from itta.explain.run_story import facts_of_dataset, tell_stream, versions, write_run_page
from itta.files import replace_text
from itta.nn.device import place
from itta.progress import ReportProgress, silent
from itta.recipes import QUICK, RECIPES
from itta.records import Record
from itta.records.story import Story, Stream
from itta.report.demo_figure import DomainPictures, StreamResults, plot_demo
from itta.report.tables import Table, percent, percent_mean
from itta.run.compare import record_of
from itta.run.evaluate import Outcome, evaluate
from itta.settings import StreamSettings
from itta.store.model import load_model, read_description
from itta.sweep.engines import run_local
from itta.trial import Trial

ORDERS = {"iid": "classes at random", "dirichlet": "classes in clusters"}
WINDOW = 100  # images over which the accuracy along a stream is taken


class Row(NamedTuple):
    """One pair of a training method and a test-time method."""

    label: str
    algorithm: str
    adapter: str
    guard: bool | None = None  # None: the adapter's own choice


ROWS = (
    Row("ERM", "erm", "source"),
    Row("ERM + TENT", "erm", "tent", False),
    Row("ERM + TENT, guarded", "erm", "tent", True),
    Row("ERM + itta+", "erm", "itta+"),
    Row("ITTA's training", "itta", "source"),
    Row("ITTA's training + ITTA's step", "itta", "itta", False),
    Row("ITTA's training + itta+", "itta", "itta+"),
)
METHODS = tuple(dict.fromkeys(row.algorithm for row in ROWS))
TOLD = "ERM + itta+"  # the page follows these streams


@dataclass(frozen=True)
class Settings:
    target: str = "noto-mono"
    seeds: tuple[int, ...] = (0,)
    steps: int = QUICK.steps
    batch_size: int | None = RECIPES["quick"].batch_size  # per source domain
    stream_batch: int = 32
    device: str = "auto"
    thinning: int = 1  # 2 takes every second image of a stream


@dataclass(frozen=True)
class Passes:
    """The passes of one trained model over the target: row and order -> answers."""

    seed: int
    outcomes: Mapping[tuple[str, str], Outcome]
    records: tuple[Record, ...]
    streams: tuple[Stream, ...]


def demo_trial(settings: Settings, algorithm: str, seed: int) -> Trial:
    return Trial(
        dataset="emoji",
        algorithm=algorithm,
        train_domains=tuple(s for s in STYLES if s != settings.target),
        test_domains=(settings.target,),
        trial_seed=seed,
        overrides=RECIPES["quick"].hparams(algorithm) | {"batch_size": settings.batch_size},
        **(QUICK.shared() | {"steps": settings.steps}),
    )


def run_demo(
    out: Path,
    settings: Settings,
    report: ReportProgress = silent,
    command: str | None = "itta demo",
    slots: int | None = None,
) -> tuple[Table, dict[str, Path]]:
    """Train the models that are missing, run the streams, and write table and figure; return the table and the files.

    ``command`` is the command that the page names; without one, no page is made. ``slots`` processes work side by side.
    """
    slots = min(2, os.cpu_count() or 1) if slots is None else slots
    jobs = {
        f"{algorithm}, seed {seed}": (demo_trial(settings, algorithm, seed), out / "runs" / f"{algorithm}-{seed}")
        for seed in settings.seeds
        for algorithm in METHODS[::-1]  # the longest first
    }
    run_local(jobs, slots=slots, report=report, device=settings.device)
    passes = run_streams(out, settings, slots, report)
    table, files = write_results(out, settings, passes)
    if command is not None:
        written = write_run_page(out, lambda: demo_story(command, settings, passes))
        files = {path.stem: path for path in written} | files
    return table, files


def run_streams(out: Path, settings: Settings, slots: int, report: ReportProgress) -> list[Passes]:
    """Run every model over the target, in ``slots`` processes; the records are written in the order of the models."""
    models = [(algorithm, seed) for seed in settings.seeds for algorithm in METHODS]
    tasks = [(out / "runs" / f"{algorithm}-{seed}", settings, seed) for algorithm, seed in models]
    found = []
    for passes in in_processes(tasks, slots):
        found.append(passes)
        report("streams", len(found), len(tasks))
    path = out / "records.jsonl"
    path.unlink(missing_ok=True)  # made again from the trained models
    for passes in found:
        for record in passes.records:
            records.append(path, record)
    return found


def in_processes(tasks: Sequence[tuple[Path, Settings, int]], slots: int) -> Iterator[Passes]:
    if slots == 1:
        yield from (run_model(*task) for task in tasks)
        return
    with ProcessPoolExecutor(slots, multiprocessing.get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        yield from pool.map(run_model, *zip(*tasks))


def run_model(folder: Path, settings: Settings, seed: int) -> Passes:
    """Run one trained model over the target: each of its rows, in each order."""
    description = read_description(folder)
    model = place(load_model(description), settings.device)
    outcomes: dict[tuple[str, str], Outcome] = {}
    made, streams = [], []
    for order, words in ORDERS.items():
        stream = StreamSettings(domain=(settings.target,), order=order, batch_size=settings.stream_batch, seed=seed)
        target = open_stream("emoji", description.expected, stream)
        target = replace(target, indices=target.indices[:: settings.thinning])
        arrival = None if target.ordered else seed
        before: Outcome | None = None
        for row in (row for row in ROWS if row.algorithm == description.algorithm):
            adapter = adapt(model, row.adapter, guard=row.guard)
            outcome = evaluate(adapter, target.images, target.indices, settings.stream_batch, arrival)
            before = outcome if before is None else before  # the first row of a model adapts nothing
            outcomes[row.label, order] = outcome
            arrived = {"order": order, "batch_size": settings.stream_batch, "seed": seed}
            made.append(record_of(description, adapter, target, outcome, arrived))
            if row.label == TOLD:
                title = f"{row.label}, {words}, seed {seed}"
                adapted = AdaptedStream(model, target, adapter, before, outcome, settings.stream_batch)
                streams.append(tell_stream(adapted, title))
    return Passes(seed, outcomes, tuple(made), tuple(streams))


def demo_story(command: str, settings: Settings, passes: Sequence[Passes]) -> Story:
    """Tell of the streams of one pair of methods, once for each seed and order."""
    title = f"{TOLD} on emoji: learned from three drawing styles, adapted to {settings.target}"
    facts = facts_of_dataset(load_dataset("emoji", image_size=64), STYLES)
    return Story(title, command, facts, versions(), tuple(stream for found in passes for stream in found.streams))


def write_results(out: Path, settings: Settings, passes: Sequence[Passes]) -> tuple[Table, dict[str, Path]]:
    table = demo_table(settings, passes)
    files = {
        "table": out / "results.md",
        "records": out / "records.jsonl",
        "summary": plot_demo(
            out / "summary.png",
            DomainPictures(*sample_pictures(), settings.target),
            StreamResults(
                {row.label: {words: accuracies(passes, row, order) for order, words in ORDERS.items()} for row in ROWS},
                {row.label: clustered_curves(passes, row) for row in ROWS if row.algorithm == "erm"},
                WINDOW,
            ),
        ),
    }
    replace_text(files["table"], f"{table.title}\n\n{table.to_markdown()}\n")
    return table, files


def demo_table(settings: Settings, passes: Sequence[Passes]) -> Table:
    """One row for each pair of methods; with several seeds their mean, standard error and single values."""
    n = len(settings.seeds)
    seeds = f"mean ± s.e. of {n} seeds" if n > 1 else "one seed"
    rows = []
    for row in ROWS:
        values = [accuracies(passes, row, order) for order in ORDERS]
        rows.append([row.label, *(percent_mean(v) if n > 1 else percent(v[0]) for v in values)])
    title = f"Accuracy on {settings.target}, a style never seen in training, %, {seeds}"
    return Table(title, ["method", *ORDERS.values()], rows)


def accuracies(passes: Sequence[Passes], row: Row, order: str) -> list[float]:
    """The accuracy of a row, seed by seed."""
    key = row.label, order
    return [p.outcomes[key].accuracy for p in passes if key in p.outcomes]


def clustered_curves(passes: Sequence[Passes], row: Row) -> list[np.ndarray]:
    """Return the accuracy along the stream with classes in clusters, for each seed."""
    key = row.label, "dirichlet"
    return [p.outcomes[key].running_accuracy(WINDOW) for p in passes if key in p.outcomes]


def sample_pictures() -> tuple[dict[str, np.ndarray], list[str]]:
    """One emoji of some classes, drawn in every style."""
    dataset = load_dataset("emoji", image_size=64)
    common = set.intersection(*(set(d.groups or ()) for d in dataset.domains.values()))
    first = next(iter(dataset.domains.values()))
    codes: dict[str, str] = {}
    for label, code in zip(first.labels, first.groups or ()):
        if code in common:
            codes.setdefault(dataset.classes[label], code)
    codes = dict(list(codes.items())[:6])
    pictures = {}
    for style, domain in dataset.domains.items():
        where = {code: i for i, code in reversed(list(enumerate(domain.groups or ())))}
        pictures[style] = domain.read([where[c] for c in codes.values()]).permute(0, 2, 3, 1).numpy()
    return pictures, [name.replace("_", " ") for name in codes]
