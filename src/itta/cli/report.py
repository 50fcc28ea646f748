"""itta report: tables, figures and a page from records."""

import sys
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from itta.cli.screen import print_json, say
from itta.errors import InputError
from itta.hparams import parse_settings
from itta.metrics.selection import SELECTIONS
from itta.registry import look_up
from itta.report.cells import Over, Split
from itta.report.layouts import PAPER_TABLES, TABLES
from itta.report.rendering import FORMATS
from itta.text import printable

Conditions = Annotated[tuple[str, ...], arg(metavar="NAME=VALUE …")]


def one_of(registry: dict[str, Any], about: str) -> Any:
    """A flag that takes a name of a registry; its help lists the names."""
    return arg(metavar="NAME", help=f"{about} Choices: {', '.join(registry)}.")


def report(
    records: Annotated[Positional[tuple[Path, ...]], arg(metavar="RECORDS …")],
    table: Annotated[
        str, one_of(TABLES, "found shows everything recorded; the others are tables of the paper.")
    ] = "found",
    selection: Annotated[
        str, one_of(SELECTIONS, "Rule that chooses checkpoint and hyper-parameters; oracle looks at target labels.")
    ] = "training-domain",
    over: Over = "seeds",
    split: Split = "auto",
    last_only: bool = False,
    where: Conditions = (),
    beside_paper: bool = False,
    calibration: bool = False,
    estimates: bool = False,
    compare: str | None = None,
    format: Annotated[str, one_of(FORMATS, "latex is for booktabs; csv has a line for each cell.")] = "markdown",
    out: Path | None = None,
    figures: Path | None = None,
    html: Path | None = None,
    json: bool = False,
) -> None:
    """Make a table from records: of everything recorded, or one of the paper's tables; or make the page of a run.

    Examples: itta report runs/; itta report runs/ --table ablation --format latex --out ablation.tex;
    itta report records.jsonl --table pacs --beside-paper; itta report runs/ --compare erm --figures figures/;
    itta report demo-output --html page.html

    Args:
        records: Files of records, or folders that contain such files.
        over: Average over trial seeds with the best hyper-parameters each (as DomainBed), or all trials (as the paper).
        split: Images of the target: in (DomainBed), out or all. auto takes in if every record has it, else all.
        last_only: Choose among the last checkpoints of the runs only. These are the ones kept as models.
        where: Keep only records with these values: steps=5001, backbone=resnet18, hparams.lr=5e-05, adapter.lr=0.0001,
            stream.order=iid.
        beside_paper: Show the paper's numbers below ours.
        calibration: Add a column with the expected calibration error.
        estimates: Also list accuracies that were estimated without labels, beside the true ones.
        compare: Also compare every row with this one: difference and 95 % interval over targets, whether they can be
            told apart, and a p-value if there are 6 targets or more. Each target counts once, with the mean over its
            seeds. best compares with the row that has the highest mean.
        out: Write the table to this file instead of the screen.
        figures: Also draw figures into this folder.
        html: Write the page of a run to this file: results, training, each stream and the answers that changed.
        json: Print the results as JSON.
    """
    from itta.files import make_folder, refuse_input, replace_text
    from itta.metrics.significance import compare_rows, rank_rows
    from itta.records.collection import collect_records
    from itta.report.cells import TableOptions
    from itta.report.comparison import best_row, comparison_table, measurements
    from itta.report.estimate_table import estimate_table
    from itta.report.filled_layout import fill_layout
    from itta.report.layouts import make_layout
    from itta.report.page.document import render_page, save_page
    from itta.report.page.page_inputs import read_inputs
    from itta.report.paper import published_tables
    from itta.report.rendering import numeric_rows, render_table
    from itta.report.table_figures import draw_figures

    if not records:
        raise InputError("no records to report: name files of records, or folders that have them.")
    look_up("table", table, TABLES)
    write = look_up("format", format, FORMATS)
    if beside_paper and table not in PAPER_TABLES:
        raise InputError(f"--beside-paper needs a table of the paper: --table {', '.join(PAPER_TABLES)}.")
    paper = published_tables()[table] if beside_paper else None
    for file in filter(None, (out, html)):
        refuse_input(file, records)
    conditions = parse_settings(where)
    inputs = read_inputs(records, conditions) if html else None
    collection = inputs.collection if inputs else collect_records(records, conditions)
    layout, options = make_layout(table, collection.records), TableOptions(selection, over, split, last_only)
    filled = fill_layout(layout, collection, options, calibration)
    values = measurements(filled)
    if compare == "best" and compare not in values:
        compare = best_row(values)
    comparisons = compare_rows(values, compare) if compare else []
    drawn = draw_figures(figures, filled, rank_rows(values)) if figures else []
    rows = numeric_rows(filled, paper)
    tables = [render_table(filled, paper)] + ([comparison_table(comparisons, compare)] if compare else [])
    tables += [estimate_table(collection.records)] if estimates else []
    page = save_page(html, render_page(inputs, tables, rows)) if html and inputs else None
    if json:
        result = {
            "table": table,
            "cells": rows,
            "notes": [*filled.notes, *(note for more in tables[1:] for note in more.notes)],
            "comparisons": [vars(c) for c in comparisons],
            "figures": [str(f) for f in drawn],
        }
        print_json(result | ({"html": str(page)} if page else {}))
        return
    if page:
        say(page)
    text = printable(write(tables, rows), keep="\n")  # a name could steer the terminal that shows the table
    if out:
        make_folder(out.parent)
        replace_text(out, text)
    elif not page:
        print(text, end="")
    for file in (*([out] if out else []), *drawn):
        say(file, file=sys.stderr)  # a pipe gets the table alone
