"""itta train: a model from several domains."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from itta.cli.next_command import next_command
from itta.cli.own_code import flags_of_own_classes
from itta.cli.screen import (
    Flags,
    NameValues,
    print_json,
    progress_bars,
    say,
    show,
    typed_command,
    typed_settings,
    use_threads,
)
from itta.errors import InputError
from itta.hparams import parse_settings
from itta.recipes import QUICK, find_recipe, follow
from itta.registry import look_up
from itta.report.tables import Table, percent
from itta.settings import ComputeSettings, DataAccess, RunSettings, TrainSettings, check_at_least

if TYPE_CHECKING:
    from itta.run.train import TrainingResult
    from itta.trial import Trial


def train(
    data: Annotated[Positional[str], arg(metavar="DATA")],
    out: Path,
    target: tuple[str, ...] = (),
    source: tuple[str, ...] = (),
    algorithm: str = "itta",
    preset: str = "paper",
    settings: NameValues = (),
    seed: int = 0,
    hparams_seed: int = 0,
    eval_every: int = 300,
    recipe: str = "auto",
    training: Flags[TrainSettings] = QUICK,
    access: Flags[DataAccess] = DataAccess(),
    compute: Flags[ComputeSettings] = ComputeSettings(),
    keep_checkpoint: bool = False,
    stand_ins: bool = True,
    page: bool = True,
    threads: int = 0,
    workers: int = 1,
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
        preset: Settings of itta: paper, as we read the paper, or released, as its released code has them.
        settings: Hyper-parameters of the method, name=value.
        seed: Seed of the split and of the run.
        hparams_seed: 0 takes the default hyper-parameters; any other value draws them as DomainBed does.
        eval_every: Record accuracies every this many steps.
        recipe: Settings that go together: quick (minutes on two cores), full (DomainBed's: 224 pixels, 5,000 steps, for
            a GPU), none (plain steps, the method's hyper-parameters), or auto: quick on a CPU, else full. The flags
            that you give replace the recipe's values.
        keep_checkpoint: Keep the last checkpoint of a finished training, three times the size of its model.
        stand_ins: Measure stand-in targets at the end, from which itta estimate learns. That takes as long as
            predicting about 2,500 images.
        page: Write page.html at the end, a page about the run in one file.
        threads: CPU threads; 0 leaves the number to torch.
        workers: Threads that read images ahead; 0 reads them when they are needed.
        json: Print the last record as JSON.
    """
    from itta.algorithms.itta import PRESETS
    from itta.data import open_dataset
    from itta.data.dataset import prepare
    from itta.data.loaders import use_workers
    from itta.explain.run_story import tell_training, write_run_page
    from itta.nn.device import resolve_device
    from itta.nn.weights import digest_of
    from itta.run.source_data import without_stand_ins
    from itta.run.train import train as run
    from itta.trial import Trial

    use_threads(threads)
    use_workers(workers)
    chosen = find_recipe(recipe, resolve_device(compute.device).type)
    training = follow(chosen, typed_settings(training))
    training.check()
    preset_values = look_up("preset", preset, PRESETS)
    check_at_least(1, eval_every=eval_every)
    dataset = open_dataset(data, training, access, seed)
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
        overrides={
            **(chosen.hparams(algorithm, training) if hparams_seed == 0 else {}),
            **(preset_values if algorithm == "itta" else {}),
            **parse_settings(settings),
        },
        fingerprint=dataset.fingerprint,
        weights_digest=digest_of(training.weights),
        precision=compute.precision,
        **training.shared(),
    )
    with progress_bars() as report, without_stand_ins(not stand_ins):
        prepare(dataset, (*sources, *target), report)
        how = RunSettings(eval_every=eval_every, keep_checkpoint=keep_checkpoint, device=compute.device)
        result = run(trial, out, dataset, how, report)
    files = write_run_page(out, lambda: tell_training(typed_command(), trial, dataset)) if page else []
    if json:
        print_json(result.last.to_json())
        return
    show(accuracy_table(result, trial))
    for file in files:
        say(f"{file.stem:8} {file}")
    say(f"model    {out}")
    say(f"next     {next_command(out, data, sources, target, access, flags_of_own_classes(trial))}")


def accuracy_table(result: "TrainingResult", trial: "Trial") -> Table:
    """Show the accuracies of the last step, and those of the best one if that is another, as itta report names them."""
    from itta.metrics.selection import training_domain

    best = training_domain(result.records, (), "")
    shown = {"last step": result.last}
    if best is not None and best.record.step != result.last.step:
        shown["best step"] = best.record
    rows = []
    for domain in (*trial.train_domains, *trial.test_domains):
        source = domain in trial.train_domains
        splits = {"out": "source, held out"} if source else {"in": "target, split in", "all": "target, all images"}
        for split, words in splits.items():
            rows.append([domain, words, *(percent(r.accuracy[domain][split]) for r in shown.values())])
    columns = [f"{name} ({record.step})" for name, record in shown.items()]
    title = (
        f"{trial.algorithm}: accuracy without adaptation, % (itta report: split in, of the step best on the sources)"
    )
    return Table(title, ["domain", "images", *columns], rows)
