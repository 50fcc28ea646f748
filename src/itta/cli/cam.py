"""itta cam: where each loss looks."""

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from itta.cli.screen import NameValues, print_json, progress_bars, say, show, use_threads
from itta.report.tables import Table, percent
from itta.settings import check_at_least


def cam(
    model: Annotated[Positional[Path], arg(metavar="MODEL")],
    data: Annotated[Positional[tuple[str, ...]], arg(metavar="DATA …")],
    domain: str | None = None,
    losses: tuple[str, ...] = (),
    block: str | None = None,
    images: int = 6,
    measure: int | None = None,
    hot: float = 0.2,
    sign: Literal["both", "lowers", "raises"] = "both",
    adapter: str | None = None,
    settings: NameValues = (),
    batch_size: int = 32,
    seed: int = 0,
    out: Path = Path("cam.png"),
    threads: int = 0,
    json: bool = False,
) -> None:
    """Draw Grad-CAM maps of several losses, and measure how alike they are to the classification loss's.

    Example: itta cam runs/sites photos/ --domain site-4 --losses main learned plain entropy --out cam.png

    Args:
        model: Directory of a trained model.
        data: "emoji"; a folder, root/class/image or root/domain/class/image with --domain; or images without labels.
        domain: The target domain.
        losses: Of main, learned, plain, entropy, rotation, class:NAME; not given: all that the model has.
        block: Block of the network (the error for a wrong one names them); not given: the last with spatial extent.
        images: Images to draw, of as many classes as there are.
        measure: Measure on so many images; not given: on all.
        hot: Share of the pixels that counts as hot.
        sign: Draw where activation moves the loss (both), or only where it lowers or raises it.
        adapter: Also look at the network after this test-time method has gone over the target (itta list adapters).
        settings: Settings of the adapter, name=value.
        batch_size: Images per batch; styles are mixed within it.
        seed: Seed of the order, the views and the turns.
        out: The figure.
        threads: CPU threads; 0 leaves it to torch.
        json: Print the result as JSON.
    """
    from itta.explain.gradcam import Settings, run_cam
    from itta.files import refuse_input
    from itta.hparams import parse_settings
    from itta.report.plot_style import check_figure_name

    use_threads(threads)
    check_figure_name(out)
    refuse_input(out, data)
    check_at_least(1, images=images, batch_size=batch_size, measure=1 if measure is None else measure)
    chosen = Settings(losses, block, images, measure, hot, sign, batch_size, seed)
    with progress_bars(json) as report:
        result = run_cam(model, data, domain, chosen, adapter, parse_settings(settings), out, report)
    if json:
        print_json(result)
        return
    rows = [
        [name, number(v["spearman"], v["spearman_se"]), number(v["iou"], v["iou_se"]), percent(v["without_heat"])]
        for name, v in result["similarity_to_main"].items()
    ]
    cells = "×".join(map(str, result["map"]))
    title = f"{result['target']}: maps at {result['block']} ({cells}) and the main loss's ({result['labels']} labels), "
    columns = ["", "rank correlation", f"IoU of the hottest {percent(hot)} %", "without heat %"]
    show(Table(f"{title}{result['images']} images", columns, rows))
    say(out)


def number(mean: float | None, error: float | None) -> str:
    return "-" if mean is None else f"{mean:.3f} ± {error:.3f}"
