"""Make a page: numbers into tables and charts, those into HTML that needs nothing but itself."""

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
from itta.records import replace_text
from itta.records.story import Story
from itta.report.cells import Options, fill
from itta.report.layouts import found
from itta.report.page.overview import cost_tables, facts, record_table, stream_table, tiles
from itta.report.page.sources import Sources, read_sources
from itta.report.page.training import LINES, Series, collect, find_runs, training_charts, training_table
from itta.report.page.views import StreamView, plain, view_stream
from itta.report.rendering import plain_rows, present
from itta.report.tables import Table

HERE = Path(__file__).parent
STREAMS = 12  # on one page
NUMBER = re.compile(r"[-+−]?\d")


def write_page(out: Path, paths: Sequence[Path], where: Mapping[str, str] | None = None) -> Path:
    """Write the page of everything recorded under the paths."""
    sources = read_sources(paths, where)
    filled = fill(found(sources.gathered.records), sources.gathered, Options())
    return save_page(out, build_page(sources, [present(filled)], plain_rows(filled)))


def save_page(out: Path, page: str) -> Path:
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_text(out, page)
    return out


def build_page(sources: Sources, tables: Sequence[Table], cells: Sequence[Mapping[str, Any]]) -> str:
    """The HTML of a page.

    ``tables`` are results made of the records, the first of them with these ``cells`` as numbers.
    """
    records = sources.gathered.records
    told = [(path, story, stream) for path, story in sources.stories for stream in story.streams]
    views = [view_stream(stream, f"stream-{i}") for i, (_, _, stream) in enumerate(told[:STREAMS], 1)]
    runs = find_runs(records, sources.steps)
    series = collect(runs[:LINES])
    measured = any(c["mean"] is not None for c in cells)
    script = (HERE / "page.js").read_text(encoding="utf-8")
    return (
        environment()
        .get_template("page.html")
        .render(
            title=title_of(sources),
            version=itta.__version__,
            policy=policy(script),
            style=(HERE / "page.css").read_text(encoding="utf-8"),
            script=script,
            stories=[story for _, story in sources.stories][:STREAMS],
            stories_left_out=max(0, len(sources.stories) - STREAMS),
            facts=facts(records),
            tiles=tiles(views) if views else (),
            views=views,
            left_out=left_out(told),
            stream_table=stream_table(views) if views else None,
            tables=tables if measured else (),
            record_table=record_table(records) if records else None,
            training_table=training_table(runs) if runs else None,
            charts=training_charts(series),
            runs_not_drawn=max(0, len(runs) - LINES),
            costs=cost_tables(views, records),
            data=numbers_of(views, cells if measured else (), series),
        )
    )


def title_of(sources: Sources) -> str:
    if sources.stories:
        return sources.stories[0][1].title
    return f"Records of {', '.join(dict.fromkeys(r.trial.dataset for r in sources.gathered.records)) or 'a run'}"


def left_out(told: Sequence[tuple[Path, Story, Any]]) -> dict[str, Any] | None:
    """What to say where there are more streams than a page can hold."""
    rest = told[STREAMS:]
    if not rest:
        return None
    command = f"itta report {shlex.quote(str(rest[0][0].parent))} --html page.html"
    return {"streams": len(rest), "of": len(told), "command": command}


def numbers_of(views: Sequence[StreamView], cells: Sequence[Mapping[str, Any]], series: Series) -> dict[str, Any]:
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


def policy(script: str) -> str:
    """Nothing may be fetched, and no script run but ours."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def environment() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # only a page needs it

    made = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters["plain"] = plain
    made.filters["number_columns"] = number_columns
    return made


def number_columns(table: Table) -> list[bool]:
    """Which columns hold numbers; the first one names the row."""
    columns = range(len(table.columns))
    return [j > 0 and any(NUMBER.match(row[j]) for row in table.rows) for j in columns]
