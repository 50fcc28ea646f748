"""itta list: what there is."""

from operator import itemgetter
from typing import Annotated

from tyro.conf import Positional, arg

from itta.cli.screen import print_json, show
from itta.registry import look_up
from itta.report.tables import Table


def list_(
    what: Annotated[Positional[str], arg(metavar="[LIST]")] = "all",
    json: bool = False,
) -> None:
    """List the training methods, test-time methods, estimators, networks and data sets.

    One list alone also shows the needs and the hyper-parameters of each method. Example: itta list adapters

    Args:
        what: algorithms, adapters, estimators, backbones, datasets, or all.
        json: Print as JSON, shared hyper-parameters included.
    """
    from itta.catalogue import catalogue, in_full

    known = catalogue()
    chosen = known if what == "all" else {what: look_up("list", what, known, "all")}
    if json:
        print_json(chosen)
        return
    for kind, entries in chosen.items():
        tell = in_full if what == kind else itemgetter("about")
        show(Table(kind, ["name", "what it is"], [[name, tell(entry)] for name, entry in entries.items()]), "left")
