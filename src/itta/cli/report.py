"""itta report: records as tables and figures, or as a page."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from itta.cli.screen import print_json
from itta.errors import InputError, unknown
from itta.hparams import parse_settings
from itta.report.tables import Table

Conditions = Annotated[tuple[str, ...], arg(metavar="NAME=VALUE …")]


def report(
    records: Annotated[Positional[tuple[Path, ...]], arg(metavar="RECORDS …")],
    table: str = "found",
    selection: Literal["training-domain", "leave-one-domain-out", "oracle"] = "training-domain",
    over: Literal["seeds", "trials"] = "seeds",
    split: Literal["auto", "in", "out", "all"] = "auto",
    last_only: bool = False,
    where: Conditions = (),
    beside_paper: bool = False,
    calibration: bool = False,
    compare: str | None = None,
    format: Literal["markdown", "latex", "csv", "html"] = "markdown",
    out: Path | None = None,
    figures: Path | None = None,
    html: Path | None = None,
    json: bool = False,
) -> None:
    """Make a table of records: one of the paper's, or one of everything found; or a page that tells a run's story.

    Examples: itta report runs/; itta report runs/ --table ablation --format latex --out ablation.tex;
    itta report records.jsonl --table pacs --beside-paper; itta report runs/ --compare erm --figures figures/;
    itta report demo-output --html page.html

    Args:
        records: Files of records, or folders with such files.
        table: found, or a table of the paper: multi-source, pacs, vlcs, officehome, terraincognita, domainnet,
            single-source, ttt, ablation, alpha, augmentation, steps, structures, locations, learnable-loss.
        selection: How the checkpoint and the hyper-parameters are chosen; oracle looks at labels of the target.
        over: Mean over trial seeds, each with its best hyper-parameters (DomainBed), or over all trials (the paper).
        split: Images of the target: in (DomainBed), out, all; auto is in where everything was measured on it, else all.
        last_only: Consider the last checkpoint of each run only, the one that is kept as a model.
        where: Keep records with these values: steps=5001, backbone=resnet18, hparams.lr=5e-05, adapter.lr=0.0001.
        beside_paper: Show the paper's figures below ours.
        calibration: Add the expected calibration error.
        compare: Also compare every row with this one.
        format: markdown, latex (booktabs), csv (a line for each cell), html.
        out: File to write; the screen if not given.
        figures: Also draw figures into this folder.
        html: Write a page instead, one file that needs no other: tables, training, the stream and what changed on it.
        json: Print as JSON.
    """
    from itta.metrics.significance import compare_rows, rank_rows
    from itta.records import replace_text
    from itta.records.collection import gather
    from itta.report.cells import Options, fill
    from itta.report.comparison import comparison_table, measurements
    from itta.report.layouts import TABLES, found
    from itta.report.page.build import build_page, save_page
    from itta.report.page.sources import read_sources
    from itta.report.paper import published
    from itta.report.rendering import plain_rows, present
    from itta.report.table_figures import draw

    if not records:
        raise InputError("no records to report: name files of records, or folders that have them.")
    if table != "found" and table not in TABLES:
        raise unknown("table", table, ["found", *TABLES])
    paper = published()[table] if beside_paper and table != "found" else None
    if beside_paper and paper is None:
        raise InputError(f"--beside-paper needs a table of the paper: --table {', '.join(TABLES)}.")
    conditions = parse_settings(where)
    sources = read_sources(records, conditions) if html else None
    gathered = sources.gathered if sources else gather(records, conditions)
    layout = TABLES[table] if table != "found" else found(gathered.records)
    filled = fill(layout, gathered, Options(selection, over, split, last_only), calibration)
    values = measurements(filled)
    comparisons = compare_rows(values, compare) if compare else []
    drawn = draw(figures, filled, rank_rows(values)) if figures else []
    rows = plain_rows(filled, paper)
    tables = [present(filled, paper)] + ([comparison_table(comparisons, compare)] if compare else [])
    page = save_page(html, build_page(sources, tables, rows)) if html and sources else None
    if json:
        told = {
            "notes": list(filled.notes),
            "comparisons": [vars(c) for c in comparisons],
            "figures": [str(f) for f in drawn],
        }
        print_json({"table": table, "cells": rows, **told, **({"html": str(page)} if page else {})})
        return
    if page:
        print(page)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        replace_text(out, as_text(format, tables, rows))
    elif not page:
        print(as_text(format, tables, rows), end="")
    for file in (*([out] if out else []), *drawn):
        print(file, file=sys.stderr)  # what a pipe takes is the table alone


def as_text(format: str, tables: Sequence[Table], rows: list[dict[str, Any]]) -> str:
    from itta.report.rendering import to_csv

    if format == "csv":
        return to_csv(rows)
    return "\n\n".join({"markdown": t.to_text, "latex": t.to_latex, "html": t.to_html}[format]() for t in tables) + "\n"
