"""itta adopt: a model directory of a network that was trained elsewhere."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from itta.cli.next_command import next_command
from itta.cli.screen import Flags, print_json, progress_bars, say, show, use_threads
from itta.report.tables import Table, percent
from itta.settings import AdoptSettings, DataAccess


def adopt(
    module: Annotated[Positional[str], arg(metavar="MODULE")],
    data: str,
    out: Path,
    wiring: Flags[AdoptSettings] = AdoptSettings(),
    access: Flags[DataAccess] = DataAccess(),
    threads: int = 0,
    json: bool = False,
) -> None:
    """Make a model directory of your own network, with statistics collected from a folder of its source images.

    Then adapt, predict, tune, cam, profile and export take the directory, and the network again with --module: a file
    never makes itta import code.
    Example: itta adopt my.networks:make_model --weights w.safetensors --data photos/ --out runs/mine

    Args:
        module: Your own network, package.module:Name: a torch.nn.Module, or a function that makes one.
        data: Source images: a data set by name (itta list datasets), a folder root/domain/class/image, or a manifest.
        out: Directory of the model.
        threads: CPU threads; 0 leaves the number to torch.
        json: Print the result as JSON.
    """
    from itta.run.adoption import adopt as run

    use_threads(threads)
    with progress_bars() as report:
        adopted = run(module, data, out, wiring, access, report)
    wired = adopted.model.wiring
    if json:
        facts = {"blocks": wired.blocks, "head": wired.head, "classes": wired.classes, "image_size": wired.image_size}
        print_json({"model": str(out), "accuracy": adopted.accuracy, **facts})
        return
    rows = [[domain, percent(accuracy)] for domain, accuracy in adopted.accuracy.items()]
    show(Table("the network as it is, on its source images", ["domain", "accuracy %"], rows))
    say(f"blocks   {', '.join(wired.blocks) or 'none found: name them with --blocks'}")
    say(f"head     {wired.head or 'none found: the features are the logits'}")
    say(f"model    {out}")
    say(f"next     {next_command(out, data, [*adopted.accuracy], (), access, ['--module', module])}")
