"""itta records: join the records of many runs, and exchange records with DomainBed."""

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from itta.cli.screen import print_json, say
from itta.errors import InputError


def records(
    action: Positional[Literal["join", "import", "export"]],
    path: Annotated[Positional[Path], arg(metavar="PATH")],
    out: Path,
    json: bool = False,
) -> None:
    """Join the records of a sweep in one file, or exchange records with DomainBed.

    Examples: itta records join sweeps/pacs --out pacs.jsonl; itta records import sweep/ --out records.jsonl;
    itta records export runs/ --out sweep/

    Args:
        action: join writes all records of a folder into one file, always in the same order. import reads a sweep of
            DomainBed, export writes one for its collect_results.
        path: A file of records, or a folder that contains such files. For import, the folder of a sweep of DomainBed.
        out: For join and import, the file of records to write. For export, the folder to write; it must be empty.
        json: Print the counts as JSON.
    """
    from itta.files import make_folder
    from itta.records import write_all
    from itta.records.collection import collect_records, in_order
    from itta.records.domainbed import read_domainbed, write_domainbed

    notes: Counter[str] = Counter()
    if action != "export":
        if out.exists():
            raise InputError(f"{out} exists: choose another --out, or delete it.")
        found = in_order(collect_records([path]).records) if action == "join" else list(read_domainbed(path, notes))
        make_folder(out.parent)
        write_all(out, found)
        kind, n = "records", len(found)
    else:
        collection = collect_records([path])
        notes.update(collection.notes)
        kind, n = "runs", write_domainbed(out, collection.records, notes)
    if json:
        print_json({kind: n, "out": str(out), "notes": dict(notes)})
        return
    say(f"{n} {kind} written to {out}")
    for note, count in notes.items():
        say(f"{count} {note}")
