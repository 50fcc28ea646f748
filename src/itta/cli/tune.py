"""itta tune: an adapter and its settings, chosen without a target."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from itta.cli.screen import check_at_least, print_json, progress_bars, show, use_threads
from itta.report.tables import Table, percent, points


def tune(
    model: Annotated[Positional[Path], arg(metavar="MODEL")],
    adapter: tuple[str, ...] = ("itta",),
    data: str | None = None,
    seeds: int = 1,
    batch_size: int = 32,
    guard: bool = False,
    data_root: Path | None = None,
    cache: bool = True,
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
        data_root: Where data sets known by name lie; else ITTA_DATA says so.
        cache: Keep decoded images on disk for the next run.
        threads: CPU threads; 0 leaves it to torch.
        json: Print the result as JSON.
    """
    from itta.run.tune import tune as run

    use_threads(threads)
    check_at_least(1, batch_size=batch_size, seeds=seeds)
    with progress_bars(json) as report:
        orders = range(seeds)
        choice = run(
            model,
            adapter,
            data=data,
            seeds=orders,
            batch_size=batch_size,
            guard=guard or None,
            data_root=data_root,
            cache=cache,
            report=report,
        )
    if json:
        print_json(asdict(choice))
        return
    domains = list(choice.plain)
    rows = [["not adapted, %", *(percent(choice.plain[d]) for d in domains), ""]]
    for name, gains in choice.gains.items():
        rows.append([name, *(points(gains[d]) for d in domains), points(sum(gains.values()) / len(gains))])
    show(Table("accuracy gained, points, on the domain left out", ["", *domains, "mean"], rows))
    print(f"chosen   {choice.chosen}")
