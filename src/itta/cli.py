"""The command line: each verb parses its flags and calls one function of the library."""

import csv
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, fields
from operator import itemgetter
from pathlib import Path
from typing import IO, Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from tyro.conf import Positional, arg

from itta.errors import InputError
from itta.hparams import parse_settings
from itta.report.tables import Table, percent, points

app = tyro.extras.SubcommandApp()
screen = Console(stderr=True)
Settings = Annotated[tuple[str, ...], arg(name="set", metavar="NAME=VALUE …")]


@app.command
def demo(out: Path = Path("demo-output"), json: bool = False) -> None:
    """Train on three drawing styles, adapt to a fourth without labels, and show what each part brought.

    A few minutes on two cores the first time, cached afterwards. Example: itta demo --out demo-output

    Args:
        out: Where models, table and figures go.
        json: Print the result as JSON.
    """
    from itta.bench.demo import Settings as DemoSettings
    from itta.bench.demo import run_demo

    use_threads(1)  # images so small gain nothing from a second one
    with progress_bars(json) as report:
        table, files = run_demo(out, DemoSettings(), report)
    if json:
        print_json({"table": asdict(table), "files": {k: str(v) for k, v in files.items()}})
        return
    show(table)
    for kind, path in files.items():
        print(f"{kind:8} {path}")


@app.command
def train(
    data: Annotated[Positional[str], arg(metavar="DATA")],
    out: Path,
    target: tuple[str, ...] = (),
    source: tuple[str, ...] = (),
    algorithm: str = "itta",
    backbone: str = "efficientnet_lite0",
    weights: str = "imagenet",
    image_size: int = 64,
    steps: int = 300,
    preset: Literal["paper", "released"] = "paper",
    settings: Settings = (),
    seed: int = 0,
    hparams_seed: int = 0,
    eval_every: int = 300,
    augment: bool = True,
    strict: bool = False,
    allow_missing_classes: bool = False,
    threads: int = 0,
    json: bool = False,
) -> None:
    """Train a model on several domains; an interrupted run goes on where it stopped.

    Examples: itta train emoji --target noto-mono --out runs/emoji;
    itta train photos/ --target site-4 --image-size 96 --steps 1000 --set lr=1e-4 batch_size=16 --out runs/sites

    Args:
        data: "emoji", or a folder root/domain/class/image.
        out: Directory of the run and of the trained model.
        target: Domains kept out of training and used to measure; none means train on all.
        source: Domains to train on; none means all but the targets.
        algorithm: Training method (itta list algorithms), or package.module:Class.
        backbone: Network (itta list backbones), or timm:MODEL.
        weights: imagenet, none, or a .safetensors or .pth file.
        image_size: Images are resized to this many pixels.
        steps: Training steps.
        preset: ITTA as we read the paper, or as its released code does it.
        settings: Hyper-parameters of the method, name=value.
        seed: Seed of the split and the run.
        hparams_seed: 0 for the defaults, else draw them at random as DomainBed does.
        eval_every: Record accuracies every so many steps.
        augment: Crop, flip and jitter the training images as DomainBed does.
        strict: With emoji: also hold out the emoji themselves, not only the style.
        allow_missing_classes: Accept domains that lack some classes.
        threads: CPU threads; 0 leaves it to torch.
        json: Print the last record as JSON.
    """
    from itta import records
    from itta.algorithms.itta import PRESETS
    from itta.bench.train import train as run
    from itta.data import load_dataset
    from itta.trial import Trial

    use_threads(threads)
    check_at_least(1, steps=steps, eval_every=eval_every, image_size=image_size)
    overrides = {**(PRESETS[preset] if algorithm == "itta" else {}), **parse_settings(settings)}
    dataset = load_dataset(data, image_size=image_size, strict=strict, allow_missing_classes=allow_missing_classes)
    for name in (*target, *source):
        dataset.domain(name)
    sources = source or tuple(d for d in dataset.domains if d not in target)
    if not sources or set(sources) & set(target):
        raise InputError(f"no domain is left to train on, or one is both: domains are {', '.join(dataset.domains)}.")
    trial = Trial(
        dataset=data,
        algorithm=algorithm,
        train_domains=sources,
        test_domains=target,
        hparams_seed=hparams_seed,
        trial_seed=seed,
        steps=steps,
        backbone=backbone,
        weights=weights,
        image_size=image_size,
        augment=augment,
        strict=strict,
        overrides=overrides,
    )
    with progress_bars(json) as report:
        run(
            trial,
            out,
            dataset,
            eval_every=eval_every,
            report=lambda step, logs: report(algorithm, step, steps),
        )
    last = list(records.read(out / "records.jsonl"))[-1]
    if json:
        print_json(last.to_json())
        return
    rows = [
        [d, "source" if d in sources else "target", percent(a.get("all", a["out"]))] for d, a in last.accuracy.items()
    ]
    show(
        Table(f"{algorithm} after {last.step} steps, accuracy %, without adaptation", ["domain", "", "accuracy"], rows)
    )
    print(f"model    {out}\nnext     itta adapt {out} {data}" + (f" --domain {target[0]}" if target else ""))


@app.command
def adapt(
    model: Annotated[Positional[Path], arg(metavar="MODEL")],
    data: Annotated[Positional[str], arg(metavar="DATA")],
    domain: str | None = None,
    adapter: str | None = None,
    preset: Literal["paper", "released"] = "paper",
    settings: Settings = (),
    guard: bool = False,
    batch_size: int = 32,
    seed: int = 0,
    out: Path | None = None,
    threads: int = 0,
    json: bool = False,
) -> None:
    """Run a target's images through a trained model once, with and without adaptation, and compare.

    Labels, where the folders give them, are used for the score only. Examples:
    itta adapt runs/emoji emoji --domain noto-mono; itta adapt runs/sites photos/site-4 --set steps=2 --out results/

    Args:
        model: Directory of a trained model.
        data: "emoji", or a folder: root/class/image, or root/domain/class/image with --domain.
        domain: The target domain.
        adapter: Test-time method (itta list adapters); not given: what itta tune chose for this model, or itta.
        preset: ITTA as we read the paper, or as its released code does it.
        settings: Settings of the adapter, name=value.
        guard: Watch the adapter, and take back what harms.
        batch_size: Images per batch of the stream.
        seed: Seed of the stream's order.
        out: Also write records, predictions and a figure to this directory.
        threads: CPU threads; 0 leaves it to torch.
        json: Print the result as JSON.
    """
    from itta.adapters import adapt as make_adapter
    from itta.bench.checkpoint import load
    from itta.bench.target import compare, find_target, summarise, write_comparison

    use_threads(threads)
    check_at_least(1, batch_size=batch_size)
    trained = load(model)
    chosen = make_adapter(trained, **adapter_of(model, adapter, preset, settings), guard=guard)
    target = find_target(model, data, domain)
    with progress_bars(json) as report:
        outcomes = compare(trained, target, chosen, batch_size, seed, report)
    result = summarise(target, chosen, *outcomes)
    files = write_comparison(out, model, target, chosen, outcomes) if out else []
    if json:
        print_json(result | {"files": [str(f) for f in files]})
        return
    rows = [[name, *values] for name, values in result["rows"].items()]
    show(Table(f"{target.name}: {result['images']} images, batches of {batch_size}", ["", *result["columns"]], rows))
    for file in files:
        print(file)


@app.command
def tune(
    model: Annotated[Positional[Path], arg(metavar="MODEL")],
    adapter: tuple[str, ...] = ("itta",),
    data: str | None = None,
    seeds: int = 1,
    batch_size: int = 32,
    guard: bool = False,
    threads: int = 0,
    json: bool = False,
) -> None:
    """Choose an adapter and its settings on the source domains, each standing in for a target in turn.

    Trains one model for each source domain, without it. The choice is stored with the model, where itta adapt and
    itta predict find it. Example: itta tune runs/sites --adapter itta tent t3a

    Args:
        model: Directory of a trained model.
        adapter: Test-time methods to choose from.
        data: The source images, if they are no longer where the model was trained.
        seeds: Orders of the stream to average over.
        batch_size: Images per batch of the stream.
        guard: Watch the adapters while choosing, as they will be watched later.
        threads: CPU threads; 0 leaves it to torch.
        json: Print the result as JSON.
    """
    from itta.bench.tune import tune as run

    use_threads(threads)
    check_at_least(1, batch_size=batch_size, seeds=seeds)
    with progress_bars(json) as report:
        orders = range(seeds)
        choice = run(model, adapter, data=data, seeds=orders, batch_size=batch_size, guard=guard, report=report)
    if json:
        print_json(asdict(choice))
        return
    domains = list(choice.plain)
    rows = [["not adapted, %", *(percent(choice.plain[d]) for d in domains), ""]]
    for name, gains in choice.gains.items():
        rows.append([name, *(points(gains[d]) for d in domains), points(sum(gains.values()) / len(gains))])
    show(Table("accuracy gained, points, on the domain left out", ["", *domains, "mean"], rows))
    print(f"chosen   {choice.chosen}")


@app.command
def predict(
    model: Annotated[Positional[Path], arg(metavar="MODEL")],
    images: Annotated[Positional[tuple[Path, ...]], arg(metavar="IMAGES …")],
    adapter: str | None = None,
    preset: Literal["paper", "released"] = "paper",
    settings: Settings = (),
    guard: bool = False,
    batch_size: int = 32,
    format: Literal["csv", "jsonl"] = "csv",
    out: Path | None = None,
    threads: int = 0,
) -> None:
    """Predict images or folders of images; a row each, with what adaptation changed.

    An image that cannot be read gets a row that says so, and the exit status is not 0.
    Example: itta predict runs/sites new-photos/ --out predictions.csv

    Args:
        model: Directory of a trained model.
        images: Image files, or folders searched for images.
        adapter: Test-time method (itta list adapters), source for none; not given: what itta tune chose, or itta.
        preset: ITTA as we read the paper, or as its released code does it.
        settings: Settings of the adapter, name=value.
        guard: Watch the adapter, and take back what harms.
        batch_size: Images per batch.
        format: csv, or one JSON object per line.
        out: File to write; the screen if not given.
        threads: CPU threads; 0 leaves it to torch.
    """
    from itta.adapters import adapt as make_adapter
    from itta.bench.checkpoint import load
    from itta.bench.predict import Prediction, predict_files
    from itta.data.folder import list_images

    use_threads(threads)
    check_at_least(1, batch_size=batch_size)
    if not images:
        raise InputError("no images to predict: name image files or folders after the model.")
    trained = load(model)
    chosen = make_adapter(trained, **adapter_of(model, adapter, preset, settings), guard=guard)
    files = list_images(images)
    unreadable = 0
    with (
        open(out, "w", newline="", encoding="utf-8") if out else nullcontext(sys.stdout) as stream,
        progress_bars(out is None) as report,
    ):
        write = row_writer(stream, format, [f.name for f in fields(Prediction)])
        done = 0
        for rows in predict_files(chosen, make_adapter(trained, "source"), files, batch_size):
            for row in rows:
                write(asdict(row))
            stream.flush()
            done += len(rows)
            unreadable += sum(bool(row.error) for row in rows)
            report("images", done, len(files))
    if unreadable:
        raise InputError(f"{unreadable} of {len(files)} images could not be read: see the column error.")


@app.command(name="list")
def list_(
    what: Positional[Literal["algorithms", "adapters", "backbones", "datasets", "all"]] = "all", json: bool = False
) -> None:
    """Show what there is: training methods, test-time methods, networks, data sets.

    One list also tells what each method needs and its hyper-parameters. Example: itta list adapters

    Args:
        what: Which list.
        json: Print as JSON, shared hyper-parameters included.
    """
    from itta.bench.catalogue import catalogue, in_full

    chosen = {kind: entries for kind, entries in catalogue().items() if what in (kind, "all")}
    if json:
        print_json(chosen)
        return
    for kind, entries in chosen.items():
        tell = in_full if what == kind else itemgetter("about")
        show(Table(kind, ["name", "what it is"], [[name, tell(entry)] for name, entry in entries.items()]), "left")


def adapter_of(model: Path, adapter: str | None, preset: str, settings: Sequence[str]) -> dict[str, Any]:
    """The method and its settings: as given, else as stored with the model, else ITTA."""
    from itta.adapters.itta import PRESETS
    from itta.bench.tune import Candidate, stored_choice

    chosen = Candidate(adapter, {}) if adapter else stored_choice(model) or Candidate("itta", {})
    presets = PRESETS[preset] if chosen.adapter == "itta" else {}
    return {"method": chosen.adapter, **chosen.settings, **presets, **parse_settings(settings)}


def use_threads(n: int) -> None:
    if n > 0:
        import torch

        torch.set_num_threads(n)


def check_at_least(low: int, **values: int) -> None:
    for name, value in values.items():
        if value < low:
            raise InputError(f"--{name.replace('_', '-')} must be at least {low}, got {value}.")


def row_writer(stream: IO[str], format: str, columns: Sequence[str]) -> Any:
    if format == "jsonl":
        return lambda row: stream.write(json.dumps(row) + "\n")
    writer = csv.DictWriter(stream, columns)
    writer.writeheader()
    return writer.writerow


@contextmanager
def progress_bars(quiet: bool) -> Iterator[Any]:
    """Give report(name, done, total): a bar for each name, on the error stream if somebody watches it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, disable=quiet or not screen.is_terminal) as bars:
        tasks: dict[str, Any] = {}

        def report(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=done)

        yield report


def show(table: Table, justify: Literal["left", "right"] = "right") -> None:
    rich = RichTable(title=table.title, title_justify="left")
    for i, column in enumerate(table.columns):
        rich.add_column(column, justify=justify if i else "left")
    for row in table.rows:
        rich.add_row(*map(escape, row))
    Console().print(rich)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; a user's mistake is one line on the error stream and status 2."""
    try:
        app.cli(
            args=argv,
            prog="itta",
            description="Train on several image domains, adapt at test time without labels.",
            config=(tyro.conf.FlagCreatePairsOff,),
        )
        sys.stdout.flush()  # here, where a reader that has gone is taken care of
    except InputError as error:
        print(f"itta: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("itta: interrupted; of train and demo the same command goes on where this one stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has what it wanted
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"itta: error: {where}{error.strerror or error}.", file=sys.stderr)
        return 2
    return 0
