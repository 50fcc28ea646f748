"""itta records: join the records of many runs, and exchange records with DomainBed."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from itta.cli.screen import print_json, say
from itta.errors import InputError

if TYPE_CHECKING:
    from itta.records import Record


def records(
    action: Positional[Literal["join", "import", "export"]],
    paths: Annotated[Positional[tuple[Path, ...]], arg(metavar="PATH …")],
    out: Path,
    json: bool = False,
) -> None:
    """Join the records of sweeps in one file, or exchange records with DomainBed.

    Examples: itta records join pacs.jsonl sweeps/more --out all.jsonl; itta records import sweep/ --out records.jsonl;
    itta records export runs/ --out sweep/

    Args:
        action: join writes all records of files and folders into one file, always in the same order. import reads a
            sweep of DomainBed, export writes one for its collect_results.
        paths: Files of records, or folders that contain such files. For import, the folder of one sweep of DomainBed.
        out: For join and import, the file of records to write. For export, the folder to write; it must be empty.
        json: Print the counts as JSON.
    """
    from itta.files import make_folder
    from itta.records import write_all
    from itta.records.domainbed import read_domainbed, write_domainbed

    notes: Counter[str] = Counter()
    if action != "export":
        if out.exists():
            raise InputError(f"{out} exists: choose another --out, or delete it.")
        found = joined(paths, notes) if action == "join" else list(read_domainbed(only(paths), notes))
        make_folder(out.parent)
        write_all(out, found)
        kind, n = "records", len(found)
    else:
        kind, n = "runs", write_domainbed(out, joined(paths, notes), notes)
    if json:
        print_json({kind: n, "out": str(out), "notes": dict(notes)})
        return
    say(f"{n} {kind} written to {out}")
    for note, count in notes.items():
        say(f"{count} {note}")


def joined(paths: Sequence[Path], notes: Counter[str]) -> "list[Record]":
    """Read the records of files and folders, in one order; add remarks on the files to ``notes``."""
    from itta.records.collection import collect_records, in_order

    if not paths:
        raise InputError("name a file of records, or a folder that contains such files.")
    found = collect_records(paths)
    notes.update(found.notes)
    return in_order(found.records)


def only(paths: Sequence[Path]) -> Path:
    if len(paths) != 1:
        raise InputError(f"import reads one sweep of DomainBed, got {len(paths)} folders.")
    return paths[0]
