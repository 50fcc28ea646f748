"""itta records: exchange records with DomainBed."""

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from itta.cli.screen import print_json
from itta.errors import InputError


def records(
    action: Positional[Literal["import", "export"]],
    path: Annotated[Positional[Path], arg(metavar="PATH")],
    out: Path,
    json: bool = False,
) -> None:
    """Read a sweep of DomainBed as records, or write records as a sweep that DomainBed's collect_results reads.

    Examples: itta records import sweep/ --out records.jsonl; itta records export runs/ --out sweep/

    Args:
        action: Which way.
        path: import: a sweep's folder. export: a file of records, or a folder with such files.
        out: import: the file to write. export: the folder to write, which must be empty.
        json: Print what was done as JSON.
    """
    from itta.records import write_all
    from itta.records.collection import gather
    from itta.records.domainbed import read_sweep, write_sweep

    told: Counter[str] = Counter()
    if action == "import":
        if out.exists():
            raise InputError(f"{out} exists: choose another --out, or delete it.")
        found = list(read_sweep(path, told))
        out.parent.mkdir(parents=True, exist_ok=True)
        write_all(out, found)
        what, n = "records", len(found)
    else:
        gathered = gather([path])
        told.update(gathered.notes)
        what, n = "runs", write_sweep(out, gathered.records, told)
    if json:
        print_json({what: n, "out": str(out), "told": dict(told)})
        return
    print(f"{n} {what} written to {out}")
    for note, count in told.items():
        print(f"{count} {note}" if count > 1 else f"1 {note}")
