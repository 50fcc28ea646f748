"""itta tune: an adapter and its settings, chosen without a target."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from itta.cli.own_code import OwnCodeFlags
from itta.cli.screen import Flags, print_json, progress_bars, say, show, use_threads
from itta.report.tables import Table, percent, points
from itta.settings import ComputeSettings, DataAccess, check_at_least


def tune(
    model: Annotated[Positional[Path], arg(metavar="MODEL")],
    adapter: tuple[str, ...] = (),
    data: str = "",
    seeds: int = 1,
    batch_size: int = 32,
    guard: bool = False,
    access: Flags[DataAccess] = DataAccess(),
    own: Flags[OwnCodeFlags] = OwnCodeFlags(),
    compute: Flags[ComputeSettings] = ComputeSettings(),
    threads: int = 0,
    json: bool = False,
) -> None:
    """Choose an adapter and its settings on the source domains; each stands in for a target in turn.

    The command trains one model for each source domain, without that domain. It stores the choice with the model; itta
    adapt and itta predict then use it. Example: itta tune runs/sites --adapter itta tent t3a

    Args:
        model: Directory of a trained model.
        adapter: Test-time methods to choose from. Without this flag: itta+, and itta for a model of ITTA's training.
        data: Folder of the source images, if they have moved since training.
        seeds: Orders of the stream to average over.
        batch_size: Images per batch of the stream.
        guard: Watch every adapter while choosing, and undo changes that do harm.
        threads: CPU threads; 0 leaves the number to torch.
        json: Print the result as JSON.
    """
    from itta.run.tune import TuneSettings
    from itta.run.tune import tune as run

    use_threads(threads)
    check_at_least(1, batch_size=batch_size, seeds=seeds)
    with progress_bars() as report:
        settings = TuneSettings(adapter, seeds, batch_size, guard or None, compute)
        choice = run(model, settings, data, access, own.given(), report)
    if json:
        print_json(asdict(choice))
        return
    domains = list(choice.plain)
    rows = [["not adapted, %", *(percent(choice.plain[d]) for d in domains), ""]]
    for name, gains in choice.gains.items():
        rows.append([name, *(points(gains[d]) for d in domains), points(sum(gains.values()) / len(gains))])
    show(Table("accuracy gained, points, on the domain left out", ["", *domains, "mean"], rows))
    say(f"chosen   {choice.chosen}")
