"""itta profile: the cost of predicting and adapting."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from itta.cli.screen import Flags, print_json, progress_bars, say, show, use_threads
from itta.errors import InputError
from itta.settings import ComputeSettings

BATCHES = {False: (1, 4), True: (1, 8, 32)}  # by --thorough
REPEATS = {False: 3, True: 10}


def profile(
    model: Annotated[Positional[Path | None], arg(metavar="[MODEL]")] = None,
    algorithm: str | None = None,
    backbone: str | None = None,
    module: str | None = None,
    image_size: int | None = None,
    classes: int | None = None,
    batch: tuple[int, ...] = (),
    adapter: tuple[str, ...] = (),
    repeats: int | None = None,
    thorough: bool = False,
    beside_paper: bool = False,
    compute: Flags[ComputeSettings] = ComputeSettings(),
    threads: int = 0,
    json: bool = False,
) -> None:
    """Measure FLOPs, parameters, time and memory of predicting, of adapting, and of both.

    Give a trained model, or name a network: it gets random weights, which cost the same. The images are random too.
    Examples: itta profile runs/sites; itta profile --backbone resnet18 --image-size 224 --classes 7 --batch 1 32

    Args:
        model: Directory of a trained model. Without it, a network is measured by name.
        algorithm: Your own training method, package.module:Class, if MODEL was trained with one.
        backbone: Network (itta list backbones). Default: resnet18. With MODEL: your own network, package.module:Name,
            if the model has one.
        module: Your own network, package.module:Name, if itta adopt made MODEL.
        image_size: Pixels on each side of an image. Default: 224.
        classes: Number of classes. Default: 7.
        batch: Batch sizes to measure. Default: 1 and 4; with --thorough: 1, 8 and 32.
        adapter: Test-time methods (itta list adapters). Default: ITTA after all blocks, after the last, per channel.
        repeats: Number of timed calls, after one to warm up. Default: 3; with --thorough: 10.
        thorough: Measure larger batches, and each more often; takes some ten times as long.
        beside_paper: Also show the paper's numbers; they hold for ResNet-18, 224 pixels, 7 classes.
        threads: CPU threads; 0 leaves the number to torch.
        json: Print the result as JSON.
    """
    from itta.explain.profile import Network, profile_model
    from itta.explain.profile_table import profile_json, profile_table
    from itta.report.paper import published_resources
    from itta.store.model import load

    network = {"backbone": backbone, "image_size": image_size, "classes": classes}
    given = {name: value for name, value in network.items() if value is not None}
    if model is not None and given.keys() - {"backbone"}:
        raise InputError("a trained model has its own size: give MODEL, or --backbone, --image-size and --classes.")
    if model is None and (algorithm or module):
        name = "--algorithm names the training method" if algorithm else "--module names the network"
        raise InputError(f"{name} of a trained model: give MODEL as well.")
    if beside_paper and (model is not None or Network(**given) != Network()):  # type: ignore[arg-type]
        raise InputError("--beside-paper: the paper measured ResNet-18, 224 pixels, 7 classes: name no other network.")
    paper = published_resources() if beside_paper else ()
    use_threads(threads)
    measured = load(model, algorithm, backbone, module) if model is not None else Network(**given)  # type: ignore[arg-type]
    with progress_bars() as report:
        times = REPEATS[thorough] if repeats is None else repeats
        usages = profile_model(measured, adapter, batch or BATCHES[thorough], times, report, compute)
    if json:
        print_json(profile_json(usages) | ({"paper": [asdict(r) for r in paper]} if paper else {}))
        return
    show(profile_table(usages, paper))
    for usage in usages:
        if usage.refused:
            say(f"{usage.mode.name}, batch {usage.batch}: {usage.refused}")
    if paper:
        say("Paper: Chen et al., CVPR 2023, arXiv:2304.04494, as printed; it names neither batch size nor machine.")
    say("GFLOPs: multiply-adds of one image, each counted once. ms: median of a batch, and the 95th percentile.")
    say("MiB: all tensors alive at the worst moment, weights and batch included. More: docs/trust/cost.md")
