"""itta cam: heat maps of losses."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from itta.cli.own_code import OwnCodeFlags
from itta.cli.screen import Flags, NameValues, print_json, progress_bars, say, show, use_threads
from itta.errors import InputError
from itta.hparams import parse_settings
from itta.report.tables import Table, percent
from itta.settings import ComputeSettings, DataAccess, check_at_least


def cam(
    model: Annotated[Positional[Path], arg(metavar="MODEL")],
    data: Annotated[Positional[tuple[str, ...]], arg(metavar="DATA …")],
    domain: str | None = None,
    losses: tuple[str, ...] = (),
    block: str | None = None,
    images: int = 6,
    measure: int | None = None,
    hot: float = 0.2,
    sign: str = "both",
    adapter: str | None = None,
    settings: NameValues = (),
    batch_size: int = 32,
    seed: int = 0,
    out: Path = Path("cam.png"),
    access: Flags[DataAccess] = DataAccess(),
    own: Flags[OwnCodeFlags] = OwnCodeFlags(),
    compute: Flags[ComputeSettings] = ComputeSettings(),
    threads: int = 0,
    json: bool = False,
) -> None:
    """Draw Grad-CAM maps of several losses, and measure how similar they are to the map of the classification loss.

    Example: itta cam runs/sites photos/ --domain site-4 --losses main learned plain entropy --out cam.png

    Args:
        model: Directory of a trained model.
        data: A data set by name (itta list datasets); a folder, root/class/image or root/domain/class/image with
            --domain; or images without labels.
        domain: Target domain.
        losses: Losses to map: main, learned, plain, entropy, rotation, class:NAME. Default: all that the model has.
        block: Block of the network; an unknown name lists the blocks. Default: the last one with a spatial output.
        images: Number of images to draw, of as many classes as possible.
        measure: Number of images to measure on. Default: all.
        hot: Share of the pixels that counts as the hot zone of a map.
        sign: lowers draws where activation lowers the loss, raises draws where it raises the loss, both draws both.
        adapter: Also map the network after this test-time method has adapted to the target (itta list adapters).
        settings: Settings of the adapter, name=value.
        batch_size: Images per batch. Styles are mixed within a batch.
        seed: Seed of the order of the images, of the second views and of the rotations.
        out: File of the figure.
        threads: CPU threads; 0 leaves the number to torch.
        json: Print the result as JSON.
    """
    from itta.adapters import adapt
    from itta.data.target import open_images
    from itta.explain.gradcam import CamSettings, draw_maps
    from itta.files import refuse_input
    from itta.nn.device import place
    from itta.report.plot_style import check_figure_name
    from itta.store.model import load_model, read_description

    use_threads(threads)
    check_figure_name(out)
    refuse_input(out, data)
    check_at_least(1, images=images, batch_size=batch_size, measure=1 if measure is None else measure)
    chosen = CamSettings(losses, block, images, measure, hot, sign, batch_size, seed)  # type: ignore[arg-type]
    if settings and adapter is None:
        raise InputError("--set sets an adapter, and none is named: add --adapter.")
    description = read_description(model)
    trained = place(load_model(description, own.given()), compute.device, compute.precision)
    adapting = adapt(trained, adapter, **parse_settings(settings)) if adapter else None
    target = open_images(data, description.expected, domain, access)
    with progress_bars() as report:
        result = draw_maps(out, trained, target, chosen, adapting, report)
    if json:
        print_json(result)
        return
    rows = [
        [name, *(mean_text(v[key], v[f"{key}_se"]) for key in ("spearman", "iou")), percent(v["without_heat"])]
        for name, v in result["similarity_to_main"].items()
    ]
    cells = "×".join(map(str, result["map"]))
    title = f"{result['target']}: maps at {result['block']} ({cells}) and the main loss's ({result['labels']} labels), "
    columns = ["", "rank correlation", f"IoU of the hottest {percent(hot)} %", "without heat %"]
    show(Table(f"{title}{result['images']} images", columns, rows))
    say(out)


def mean_text(mean: float | None, error: float | None) -> str:
    return "-" if mean is None else f"{mean:.3f} ± {error:.3f}"
