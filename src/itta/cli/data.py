"""itta data: published data sets, and checks of your own images."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, Positional, arg, subcommand

from itta.cli.screen import print_json, progress_bars, say, show
from itta.errors import InputError
from itta.report.tables import Table

SHOWN = 20  # problems on the screen; JSON has all


@dataclass(frozen=True)
class List:
    """Show the published data sets: their domains, numbers of images and sources."""

    json: bool = False  # Print as JSON, with all that is known.


@dataclass(frozen=True)
class Get:
    """Fetch a data set, unpack it, and lay it out as DomainBed does; an interrupted download goes on."""

    name: Annotated[Positional[str], arg(metavar="NAME")]  # Name of the data set (itta data list).
    root: Path  # Folder of all data sets; name the same folder in --data-root or ITTA_DATA.
    url: str | None = None  # A folder on the web that holds the same files.
    json: bool = False  # Print the result as JSON.


@dataclass(frozen=True)
class Check:
    """Count the images, compare with the published numbers, and read every image; status 0 means that all is well."""

    path: Annotated[Positional[Path], arg(metavar="PATH")]  # A folder root/domain/class/image, or a manifest.
    name: str | None = None  # Which data set it should be; not given: by the folder's name.
    decode: bool = True  # Read every image.
    json: bool = False  # Print the result as JSON.


def data(
    do: OmitSubcommandPrefixes[
        OmitArgPrefixes[
            Annotated[List, subcommand("list")]
            | Annotated[Get, subcommand("get")]
            | Annotated[Check, subcommand("check")]
        ]
    ],
) -> None:
    """Get the data sets of DomainBed, and check them or your own.

    Examples: itta data list; itta data get PACS --root datasets; itta data check photos/
    """
    run: Any = {List: run_list, Get: run_get, Check: run_check}[type(do)]
    run(do)


def run_list(options: List) -> None:
    from itta.data.published import PUBLISHED

    if options.json:
        print_json({name: facts.to_json() for name, facts in PUBLISHED.items()})
        return
    rows = [
        [
            name,
            f"{sum(facts.counts[0].values()):,}",
            str(facts.n_classes),
            ", ".join(facts.domains),
            facts.about,
        ]
        for name, facts in PUBLISHED.items()
    ]
    show(Table("data sets", ["name", "images", "classes", "domains", "what it is"], rows), "left")


def run_get(options: Get) -> None:
    from itta.data.published import find_published
    from itta.data.retrieval import retrieve
    from itta.data.verification import verify

    with progress_bars() as report:
        folder = retrieve(options.name, options.root, url=options.url, report=report)
    print_check(verify(folder, find_published(options.name).name, decode=False), options.json)


def run_check(options: Check) -> None:
    from itta.data.verification import verify

    with progress_bars() as report:
        found = verify(options.path, options.name, decode=options.decode, report=report)
    print_check(found, options.json)


def print_check(found: Any, json: bool) -> None:
    """Print the counts of a check; problems are an error, printed last."""
    result = found.to_json()
    if json:
        print_json(result)
    else:
        rows = [
            [name, f"{d['images']:,}", "-" if d["expected"] is None else f"{d['expected']:,}", str(len(d["classes"]))]
            for name, d in result["domains"].items()
        ]
        show(Table(f"{found.name or 'images'} in {found.path}", ["domain", "images", "published", "classes"], rows))
        for problem in found.problems[:SHOWN]:
            say(problem)
        if len(found.problems) > SHOWN:
            say(f"… and {len(found.problems) - SHOWN} more (--json has all)")
    if found.problems:
        raise InputError(f"{len(found.problems)} problems in {found.path}: {found.problems[0].rstrip('.')}, …")
