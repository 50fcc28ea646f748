"""itta list: what there is."""

from operator import itemgetter
from typing import Literal

from tyro.conf import Positional

from itta.cli.screen import print_json, show
from itta.report.tables import Table


def list_(
    what: Positional[Literal["algorithms", "adapters", "estimators", "backbones", "datasets", "all"]] = "all",
    json: bool = False,
) -> None:
    """Show what there is: training methods, test-time methods, estimators, networks, data sets.

    One list also tells what each method needs and its hyper-parameters. Example: itta list adapters

    Args:
        what: Which list.
        json: Print as JSON, shared hyper-parameters included.
    """
    from itta.catalogue import catalogue, in_full

    chosen = {kind: entries for kind, entries in catalogue().items() if what in (kind, "all")}
    if json:
        print_json(chosen)
        return
    for kind, entries in chosen.items():
        tell = in_full if what == kind else itemgetter("about")
        show(Table(kind, ["name", "what it is"], [[name, tell(entry)] for name, entry in entries.items()]), "left")
