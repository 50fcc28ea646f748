"""The HTML document of a page: one file that needs no other."""

import base64
import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import itta
from itta.files import make_folder, replace_text
from itta.records.story import Stream
from itta.report.cells import TableOptions
from itta.report.filled_layout import fill_layout
from itta.report.layouts import make_layout
from itta.report.page.page_inputs import PageInputs, read_inputs
from itta.report.page.run_summary import cost_tables, record_facts, record_table, stream_table, tiles
from itta.report.page.stream_view import StreamView, estimate_text, value_text, view_stream
from itta.report.page.training_curves import (
    MOST_LINES,
    Series,
    find_runs,
    training_charts,
    training_series,
    training_table,
)
from itta.report.rendering import numeric_rows, render_table
from itta.report.tables import Table

HERE = Path(__file__).parent
MOST_STREAMS = 12  # on one page
NUMBER = re.compile(r"[-+−]?\d")


def write_page(out: Path, paths: Sequence[Path], where: Mapping[str, str] | None = None) -> Path:
    """Write the page of everything recorded under the paths."""
    inputs = read_inputs(paths, where)
    filled = fill_layout(make_layout("found", inputs.collection.records), inputs.collection, TableOptions())
    return save_page(out, render_page(inputs, [render_table(filled)], numeric_rows(filled)))


def save_page(out: Path, page: str) -> Path:
    make_folder(out.parent)
    replace_text(out, page)
    return out


def render_page(inputs: PageInputs, tables: Sequence[Table], cells: Sequence[Mapping[str, Any]]) -> str:
    """The HTML of a page.

    ``tables`` are the results; ``cells`` are the numbers of the first table.
    """
    records = inputs.collection.records
    streams = [(path, stream) for path, story in inputs.stories for stream in story.streams]
    views = [view_stream(stream, f"stream-{i}") for i, (_, stream) in enumerate(streams[:MOST_STREAMS], 1)]
    runs = find_runs(records, inputs.steps)
    series = training_series(runs[:MOST_LINES])
    measured = any(c["mean"] is not None for c in cells)
    script = (HERE / "page.js").read_text(encoding="utf-8")
    return (
        environment()
        .get_template("page.html")
        .render(
            title=page_title(inputs),
            version=itta.__version__,
            policy=content_policy(script),
            style=(HERE / "page.css").read_text(encoding="utf-8"),
            script=script,
            stories=[story for _, story in inputs.stories][:MOST_STREAMS],
            stories_left_out=max(0, len(inputs.stories) - MOST_STREAMS),
            facts=record_facts(records),
            tiles=tiles(views) if views else (),
            views=views,
            left_out=streams_left_out(streams),
            stream_table=stream_table(views) if views else None,
            tables=tables if measured else (),
            record_table=record_table(records) if records else None,
            training_table=training_table(runs) if runs else None,
            charts=training_charts(series),
            runs_not_drawn=max(0, len(runs) - MOST_LINES),
            costs=cost_tables(views, records),
            data=page_numbers(views, cells if measured else (), series),
        )
    )


def page_title(inputs: PageInputs) -> str:
    if inputs.stories:
        return inputs.stories[0][1].title
    return f"Records of {', '.join(dict.fromkeys(r.trial.dataset for r in inputs.collection.records)) or 'a run'}"


def streams_left_out(streams: Sequence[tuple[Path, Stream]]) -> dict[str, Any] | None:
    """How many streams are missing on the page, and the command that shows the next one; None if all are there."""
    rest = streams[MOST_STREAMS:]
    if not rest:
        return None
    command = f"itta report {shlex.quote(str(rest[0][0].parent))} --html page.html"
    return {"streams": len(rest), "of": len(streams), "command": command}


def page_numbers(views: Sequence[StreamView], cells: Sequence[Mapping[str, Any]], series: Series) -> dict[str, Any]:
    """The numbers of the page, for programs."""
    streams = [
        {
            "title": v.title,
            "target": v.stream.target,
            "adapter": v.stream.adapter,
            **asdict(v.summary),
            "curve": asdict(v.curve),
            "classes": [asdict(c) for c in v.classes],
            "confusion": {k: m.counts for k, m in zip(("before", "after"), v.matrices)},
            "most_confused": [asdict(p) for p in v.pairs],
            "events": [asdict(e) for e in v.stream.events],
            "seconds": dict(v.stream.seconds),
        }
        for v in views
    ]
    return {"itta": itta.__version__, "results": list(cells), "streams": streams, "training": series}


def content_policy(script: str) -> str:
    """The Content-Security-Policy of the page: it may fetch nothing and run no script but ours."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def environment() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # nothing but a page needs it

    made = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters["value_text"] = value_text
    made.filters["estimate_text"] = estimate_text
    made.filters["number_columns"] = number_columns
    return made


def number_columns(table: Table) -> list[bool]:
    """For each column, whether it holds numbers; the first one names the row."""
    columns = range(len(table.columns))
    return [j > 0 and any(NUMBER.match(row[j]) for row in table.rows) for j in columns]
