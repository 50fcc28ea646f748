"""itta train: a model from several domains."""

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from itta.cli.screen import Settings, check_at_least, command, print_json, progress_bars, show, use_threads
from itta.errors import InputError
from itta.hparams import parse_settings
from itta.report.tables import Table, percent


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
    regime: Literal["large", "small", "domainnet", "auto"] = "large",
    eval_every: int = 300,
    augment: bool = True,
    strict: bool = False,
    allow_missing_classes: bool = False,
    data_root: Path | None = None,
    cache: bool = True,
    page: bool = True,
    threads: int = 0,
    json: bool = False,
) -> None:
    """Train a model on several domains; an interrupted run goes on where it stopped.

    Examples: itta train emoji --target noto-mono --out runs/emoji;
    itta train photos/ --target site-4 --image-size 96 --steps 1000 --set lr=1e-4 batch_size=16 --out runs/sites

    Args:
        data: "emoji", a data set of itta data list, a folder root/domain/class/image, or a manifest (CSV, JSON).
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
        regime: Whose hyper-parameters, defaults and ranges: DomainBed's of large images, of small ones, of DomainNet;
            auto: as itta sweep chooses, domainnet for DomainNet, small up to 32 pixels, else large.
        eval_every: Record accuracies every so many steps.
        augment: Crop, flip and jitter the training images as DomainBed does.
        strict: With emoji: also hold out the emoji themselves, not only the style.
        allow_missing_classes: Accept domains that lack some classes.
        data_root: Where data sets known by name lie; else ITTA_DATA says so.
        cache: Keep decoded images on disk for the next run.
        page: Write page.html at the end, with everything to look at in one file.
        threads: CPU threads; 0 leaves it to torch.
        json: Print the last record as JSON.
    """
    from itta import records
    from itta.algorithms.itta import PRESETS
    from itta.data import load_dataset
    from itta.data.dataset import prepare
    from itta.explain.run_story import tell_training, write_run_page
    from itta.run.train import train as run
    from itta.sweep.plan import regime_of
    from itta.trial import Trial

    use_threads(threads)
    check_at_least(1, steps=steps, eval_every=eval_every, image_size=image_size)
    overrides = {**(PRESETS[preset] if algorithm == "itta" else {}), **parse_settings(settings)}
    dataset = load_dataset(
        data,
        image_size=image_size,
        strict=strict,
        allow_missing_classes=allow_missing_classes,
        root=data_root,
        cache=cache,
        seed=seed,
    )
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
        regime=regime_of(data, image_size) if regime == "auto" else regime,
    )
    with progress_bars(json) as report:
        prepare(dataset, (*sources, *target), report)
        run(
            trial,
            out,
            dataset,
            eval_every=eval_every,
            report=lambda step, logs: report(algorithm, step, steps),
        )
    files = write_run_page(out, lambda: tell_training(command(), trial, dataset)) if page else []
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
    for file in files:
        print(f"{file.stem:8} {file}")
    print(f"model    {out}\nnext     itta adapt {out} {data}" + (f" --domain {target[0]}" if target else ""))
