"""Every test-time method on every target, kind of stream and batch size: does it help, and where does it harm?

Trains one model for each target and seed, and for each method that builds on a training of its own; adapts each along
the streams; writes one row per stream and method as soon as it is known, and tables of them all. What is there already
is not done again, so the same command goes on after an interruption; other settings, or more images, are other rows.
Without options, it makes everything in docs/results/records/adaptation_grid.csv.
With --ablation: the parts of ITTA's step, and of itta+, one by one, on the plainest streams.
"""

import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.progress import Progress

from benchmarks.adaptation_tables import BATCHES, ORDERS, OWN_TRAINING, WHOLE, Row, write
from benchmarks.adaptation_variants import variants, with_blocks
from itta.adapters import ADAPTERS, Adapter, adapt, find_adapter
from itta.algorithms import Algorithm
from itta.data import load_dataset
from itta.data.dataset import Images
from itta.data.streams import draw_order
from itta.errors import InputError
from itta.hparams import parse_settings
from itta.records import append_lines, read_lines
from itta.run.evaluate import evaluate
from itta.seeds import derive_seed
from itta.store.model import load
from itta.sweep.engines import run_local
from itta.trial import Trial

PLAINEST = ("iid", 32)
FEWER_VIEWS = ("memo.views=8", "cotta.views=8")  # than 32 of each image, to save time


class Job(NamedTuple):
    """A method with its settings, under the name it has in the table, on a kind of stream."""

    label: str
    adapter: str | type[Adapter]
    settings: dict[str, Any]
    order: str
    batch: int
    images: int

    @property
    def written(self) -> str:
        return " ".join(f"{name}={value}" for name, value in sorted(self.settings.items()))


@dataclass(frozen=True)
class Options:
    out: Path = Path("grid")  # models, rows and tables
    data: tuple[str, ...] = ("emoji", "PACS")  # "emoji", or folders root/domain/class/image
    seeds: int = 3  # of model, images and stream
    images: int = 600  # of each target, drawn at random, for methods that run on every stream
    fewer: int = 200  # of each target, for the others and the ablation
    training: str = "itta"  # algorithm of the models, for all methods but those that need their own
    whole: tuple[str, ...] = WHOLE  # methods that run on every stream
    steps: int = 80  # of training
    batch_size: int = 12  # images of each source domain in a training step
    lr: float = 2e-4  # of training
    image_size: int = 64  # pixels on each side
    backbone: str = "efficientnet_lite0"  # network
    weights: str = "imagenet"  # it starts from
    slots: int = 2  # processes at a time
    adapters: tuple[str, ...] = tuple(n for n in ADAPTERS if n != "source")  # methods to run
    # settings of the methods
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="ADAPTER.NAME=VALUE …")] = FEWER_VIEWS
    guard: bool = False  # with the guard around every method, as "guarded NAME"
    ablation: bool = False  # the parts of ITTA's step and of itta+, one by one


@dataclass(frozen=True)
class Model:
    """One training, and the streams of one target through it."""

    trial: Trial
    folder: Path
    jobs: tuple[Job, ...]
    rows: Path

    def done(self) -> list[Row | None]:
        """Each job's row, or none as long as there is none."""
        found = read(self.rows)
        return [next((row for row in found if answers(row, job)), None) for job in self.jobs]


def models(options: Options) -> list[Model]:
    """One training for all methods but those that need their own."""
    by_training: dict[str, list[Job]] = {}
    for job in ablation_jobs(options) if options.ablation else jobs(options):
        own = find(job).needs.training
        by_training.setdefault(own if own in OWN_TRAINING else options.training, []).append(job)
    loaded = {data: load_dataset(data, image_size=options.image_size) for data in options.data}
    found = []
    for seed in range(options.seeds):
        for data, dataset in loaded.items():
            domains = tuple(dataset.domains)
            for target in domains:
                there = len(dataset.domain(target))
                for algorithm, of_model in by_training.items():
                    trial = Trial(
                        dataset=data,
                        algorithm=algorithm,
                        train_domains=tuple(d for d in domains if d != target),
                        test_domains=(target,),
                        trial_seed=seed,
                        steps=options.steps,
                        backbone=options.backbone,
                        weights=options.weights,
                        image_size=options.image_size,
                        augment=False,
                        overrides={"lr": options.lr, "batch_size": options.batch_size},
                    )
                    own = "" if algorithm == "itta" else f"-{algorithm}"
                    folder = options.out / "runs" / f"{Path(data).name}-{target}-{seed}{own}"
                    rows = folder.with_name(f"{folder.name}.{'ablation' if options.ablation else 'grid'}.jsonl")
                    here = tuple(job._replace(images=min(job.images, there)) for job in of_model)
                    found.append(Model(trial, folder, here, rows))
    return found


def jobs(options: Options) -> list[Job]:
    """The whole grid for some methods, the plainest stream for the others."""
    found = []
    for name in options.adapters:
        chosen = parse_settings([s.removeprefix(f"{name}.") for s in options.set if s.startswith(f"{name}.")])
        streams = [(o, b) for o in ORDERS for b in BATCHES] if name in options.whole else [PLAINEST]
        images = options.images if name in options.whole else options.fewer
        label = f"guarded {name}" if options.guard else name
        settings = chosen | ({"guard": True} if options.guard else {})
        found += [Job(label, name, settings, order, batch, images) for order, batch in streams]
    return found


def ablation_jobs(options: Options) -> list[Job]:
    return [Job(label, adapter, chosen, "iid", 16, options.fewer) for label, (adapter, chosen) in variants().items()]


def find(job: Job) -> type[Adapter]:
    return find_adapter(job.adapter) if isinstance(job.adapter, str) else job.adapter


def adapt_one(model: Model) -> None:
    """All streams of one model that have no row yet."""
    torch.set_num_threads(1)
    waiting = [job for job, row in zip(model.jobs, model.done()) if row is None]
    if not waiting:
        return
    trial, trained = model.trial, load(model.folder)
    (target,) = trial.test_domains
    domain = load_dataset(trial.dataset, image_size=trial.image_size).domain(target)
    drawn = np.random.RandomState(derive_seed(trial.trial_seed, "grid", target)).permutation(len(domain))
    chosen = {n: np.sort(drawn[:n]) for n in {job.images for job in waiting}}
    before = {n: evaluate(adapt(trained, "source"), domain, c, 64, None).accuracy for n, c in chosen.items()}
    for job in waiting:
        accuracy, note = run(trained, job, domain, chosen[job.images], trial.trial_seed)
        row = Row(
            Path(trial.dataset).name, target, trial.trial_seed, job.label, job.order, job.batch, job.images,
            before[job.images], accuracy, note, job.written,
        )  # fmt: skip
        append_lines(model.rows, [asdict(row)])


def run(trained: Algorithm, job: Job, domain: Images, chosen: np.ndarray, seed: int) -> tuple[float | None, str]:
    """Accuracy along a stream, and what there is to say about it."""
    order = draw_order({"target": domain.labels[chosen]}, job.order, seed=seed)  # type: ignore[arg-type]
    try:
        adapter = adapt(trained, job.adapter, **with_blocks(job.settings, trained.backbone.block_names))
        outcome = evaluate(adapter, domain, chosen[order.index], job.batch, None)
    except InputError as error:
        return None, str(error)
    done = adapter.describe().get("interventions", {})
    return outcome.accuracy, ", ".join(f"{watch}: {n}" for watch, n in done.items())


def answers(row: Row, job: Job) -> bool:
    """Whether a row is what the job would find."""
    found = (row.adapter, row.order, row.batch, row.images, row.settings)
    return found == (job.label, job.order, job.batch, job.images, job.written)


def read(path: Path) -> list[Row]:
    """The rows there are; one torn by a crash is left out."""
    return [Row(**values) for values in read_lines(path)] if path.is_file() else []


def main(options: Options) -> None:
    every = models(options)
    with Progress(console=Console(stderr=True)) as bars:
        bar = bars.add_task("training steps", total=options.steps * len(every))
        done = {m.folder.name: options.steps for m in every if (m.folder / "model.json").is_file()}
        bars.update(bar, completed=sum(done.values()))

        def report(name: str, step: int, steps: int) -> None:
            done[name] = step
            bars.update(bar, completed=sum(done.values()))

        run_local({m.folder.name: (m.trial, m.folder) for m in every}, options.slots, report)
        bar = bars.add_task("models adapted", total=len(every))
        with ProcessPoolExecutor(options.slots, mp_context=get_context("spawn")) as pool:
            for future in as_completed([pool.submit(adapt_one, model) for model in every]):
                future.result()
                bars.advance(bar)
    rows = [row for model in every for row in model.done() if row is not None]
    print(write(rows, options.out, "ablation" if options.ablation else "grid"))


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, prog="python -m benchmarks.adaptation_grid", description=__doc__))
    except InputError as error:
        sys.exit(f"error: {error}")
