"""itta train: a model from several domains."""

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from itta.cli.screen import Flags, NameValues, print_json, progress_bars, say, show, typed_command, use_threads
from itta.errors import InputError
from itta.hparams import parse_settings
from itta.report.tables import Table, percent
from itta.settings import DataAccess, TrainSettings, check_at_least


def train(
    data: Annotated[Positional[str], arg(metavar="DATA")],
    out: Path,
    target: tuple[str, ...] = (),
    source: tuple[str, ...] = (),
    algorithm: str = "itta",
    preset: Literal["paper", "released"] = "paper",
    settings: NameValues = (),
    seed: int = 0,
    hparams_seed: int = 0,
    eval_every: int = 300,
    training: Flags[TrainSettings] = TrainSettings(),
    access: Flags[DataAccess] = DataAccess(),
    page: bool = True,
    threads: int = 0,
    json: bool = False,
) -> None:
    """Train a model on several domains; an interrupted run goes on where it stopped.

    Examples: itta train emoji --target noto-mono --out runs/emoji;
    itta train photos/ --target site-4 --image-size 96 --steps 1000 --set lr=1e-4 batch_size=16 --out runs/sites

    Args:
        data: A data set by name (itta list datasets), a folder root/domain/class/image, or a manifest (CSV, JSON).
        out: Directory of the run and of the trained model.
        target: Domains to keep out of training and to measure on. Without this flag, train on all domains.
        source: Domains to train on. Without this flag, all domains but the targets.
        algorithm: Training method (itta list algorithms), or package.module:Class.
        preset: Settings of itta: as we read the paper, or as its released code has them.
        settings: Hyper-parameters of the method, name=value.
        seed: Seed of the split and of the run.
        hparams_seed: 0 takes the default hyper-parameters; any other value draws them as DomainBed does.
        eval_every: Record accuracies every this many steps.
        page: Write page.html at the end, a page about the run in one file.
        threads: CPU threads; 0 leaves the number to torch.
        json: Print the last record as JSON.
    """
    from itta.algorithms.itta import PRESETS
    from itta.data import load_dataset
    from itta.data.dataset import prepare
    from itta.explain.run_story import tell_training, write_run_page
    from itta.run.train import train as run
    from itta.trial import Trial

    use_threads(threads)
    training.check()
    check_at_least(1, eval_every=eval_every)
    dataset = load_dataset(
        data,
        image_size=training.image_size,
        strict=training.strict,
        allow_missing_classes=training.allow_missing_classes,
        seed=seed,
        access=access,
    )
    for name in (*target, *source):
        dataset.domain(name)
    sources = source or tuple(d for d in dataset.domains if d not in target)
    if not sources or set(sources) & set(target):
        raise InputError(f"no domain is left to train on, or one is both: domains are {', '.join(dataset.domains)}.")
    trial = Trial(
        str(dataset.path or data),
        algorithm,
        sources,
        target,
        hparams_seed,
        seed,
        overrides={**(PRESETS[preset] if algorithm == "itta" else {}), **parse_settings(settings)},
        fingerprint=dataset.fingerprint,
        **training.shared(),
    )
    with progress_bars(json) as report:
        prepare(dataset, (*sources, *target), report)
        result = run(trial, out, dataset, eval_every=eval_every, report=report)
    files = write_run_page(out, lambda: tell_training(typed_command(), trial, dataset)) if page else []
    if json:
        print_json(result.last.to_json())
        return
    rows = [
        [d, "source" if d in sources else "target", percent(a.get("all", a["out"]))]
        for d, a in result.last.accuracy.items()
    ]
    title = f"{algorithm} after {result.last.step} steps, accuracy %, without adaptation"
    show(Table(title, ["domain", "", "accuracy"], rows))
    for file in files:
        say(f"{file.stem:8} {file}")
    say(f"model    {out}\nnext     itta adapt {out} {data}" + (f" --domain {target[0]}" if target else ""))
