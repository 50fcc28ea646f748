"""itta profile: what predicting and adapting cost."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from itta.cli.screen import print_json, progress_bars, say, show, use_threads
from itta.errors import InputError


def profile(
    model: Annotated[Positional[Path | None], arg(metavar="[MODEL]")] = None,
    backbone: str | None = None,
    image_size: int | None = None,
    classes: int | None = None,
    batch: tuple[int, ...] = (1, 8, 32),
    adapter: tuple[str, ...] = (),
    repeats: int = 10,
    beside_paper: bool = False,
    threads: int = 0,
    json: bool = False,
) -> None:
    """Measure FLOPs, parameters, time and memory of predicting, of adapting, and of both.

    A trained model, or a network with random weights, which cost the same; images are random too.
    Examples: itta profile runs/sites; itta profile --backbone resnet18 --image-size 224 --classes 7 --batch 1 32

    Args:
        model: Directory of a trained model; not given: a network by name.
        backbone: Network (itta list backbones); resnet18 if not given.
        image_size: Pixels on each side; 224 if not given.
        classes: Number of classes; 7 if not given.
        batch: Batch sizes.
        adapter: Test-time methods (itta list adapters); not given: ITTA after all blocks, the last, and per channel.
        repeats: Timed calls, after one to warm up; let the machine be otherwise idle.
        beside_paper: Also show the paper's figures, which are of ResNet-18, 224 pixels, 7 classes.
        threads: CPU threads; 0 leaves it to torch.
        json: Print the result as JSON.
    """
    from itta.explain.profile import Network, to_json, to_table
    from itta.explain.profile import profile as measure
    from itta.report.paper import published_resources
    from itta.store.model import load

    network = {"backbone": backbone, "image_size": image_size, "classes": classes}
    given = {name: value for name, value in network.items() if value is not None}
    if model is not None and given:
        raise InputError("a trained model has its own network: give MODEL, or --backbone, --image-size and --classes.")
    if beside_paper and (model is not None or Network(**given) != Network()):  # type: ignore[arg-type]
        raise InputError("--beside-paper: the paper's figures are of ResNet-18, 224 pixels, 7 classes: name no other.")
    paper = published_resources() if beside_paper else ()
    use_threads(threads)
    measured = load(model) if model is not None else Network(**given)  # type: ignore[arg-type]
    with progress_bars(json) as report:
        usages = measure(measured, adapter, batch, repeats, report)
    if json:
        print_json(to_json(usages) | ({"paper": [asdict(r) for r in paper]} if paper else {}))
        return
    show(to_table(usages, paper))
    for usage in usages:
        if usage.refused:
            say(f"{usage.mode.name}, batch {usage.batch}: {usage.refused}")
    if paper:
        say(
            "Paper: Chen et al., CVPR 2023, arXiv:2304.04494, as printed; batch and machine of its times are not named."
        )
    say("GFLOPs: multiply-adds of one image, each counted once. ms: median of a batch, and the 95th percentile.")
    say("MiB: all tensors alive at the worst moment, weights and batch included. More: docs/resources.md")
