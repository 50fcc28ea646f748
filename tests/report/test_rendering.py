"""Tables as they are read: markdown, LaTeX, HTML, and plain rows for machines."""

import csv
import io
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from itta.records import Record
from itta.records.collection import Collection
from itta.report.cells import TableOptions
from itta.report.filled_layout import FilledLayout, fill_layout
from itta.report.layouts import PAPER_TABLES, Layout
from itta.report.paper import published_tables
from itta.report.rendering import csv_text, numeric_rows, render_table, table_caption
from itta.report.tables import Table

Made = Callable[..., list[Record]]


@pytest.fixture
def filled(made: Made) -> FilledLayout:
    """Two targets, made-up numbers: ERM on both and two seeds, ITTA on one seed of one."""
    runs = [r for t in ("photo", "sketch") for s in (0, 1) for r in made("erm", t, s, 0.5 + s / 10)]
    runs += made("itta", "photo", accuracy=0.7, adapted={"itta": 0.8})
    layout = PAPER_TABLES["pacs"]
    rows = tuple(r for r in layout.rows if r.label in ("ERM", "IRM", "Ours"))
    return fill_layout(Layout(layout.title, rows, layout.columns[2:4]), Collection(runs), TableOptions(split="in"))


def test_cells_with_fewer_seeds_and_none_say_so(filled: FilledLayout) -> None:
    table = render_table(filled)
    assert list(table.columns) == ["", "Photo", "Sketch"]
    assert table.rows == [
        ["ERM", "55.0 ± 3.5", "55.0 ± 3.5"],
        ["IRM", "not run", "not run"],
        ["Ours", "80.0 (n=1)", "not run"],
    ]
    assert set(table.best) == {(2, 1)}  # in the other column there is nothing to beat


def test_the_papers_figures_stand_below_ours(filled: FilledLayout) -> None:
    table = render_table(filled, published_tables()["pacs"])
    assert table.rows[1] == ["ERM, paper", "94.1 ± 0.4", "73.6 ± 2.2"]
    assert table.rows[4][0] == "Ours"
    assert set(table.best) == {(4, 1)}
    assert any("arXiv:2304.04494" in note for note in table.notes)


def test_the_caption_names_selection_split_and_what_the_error_is_over(filled: FilledLayout) -> None:
    text = table_caption(filled)
    assert "training-domain validation" in text
    assert "split 'in'" in text
    assert "over n = 2 trial seeds" in text
    other = replace(filled, options=TableOptions("oracle", "trials", "all", True), split="all")
    assert "oracle" in table_caption(other)
    assert "whole target domain" in table_caption(other)
    assert "n = 2 all trials, hyper-parameters not selected" in table_caption(other)


TABLE = Table("50 % of f_w", ["a_b", "x|y"], [["α & <b>", "1.0 ± 0.1"], ["r", "2.0"]], {(1, 1)}, ["note: 5 % & more"])


def test_markdown() -> None:
    lines = TABLE.to_markdown().splitlines()
    assert [cell.strip() for cell in re.split(r"(?<!\\)\|", lines[0])] == ["", "a_b", "x\\|y", ""]
    assert lines[1].endswith("-:|")
    assert "**2.0**" in lines[3]
    assert len({len(line) for line in lines}) == 1
    assert TABLE.to_text().startswith("50 % of f_w\n\n|")
    assert TABLE.to_text().endswith("note: 5 % & more")


def test_latex_is_booktabs_and_escaped() -> None:
    text = TABLE.to_latex()
    for part in (
        r"\caption{50 \% of f\_w}",
        r"\toprule",
        r"a\_b",
        r"$\alpha$ \& \ensuremath{<}b\ensuremath{>}",
        r"1.0 $\pm$ 0.1",
        r"\textbf{2.0}",
        r"\par\footnotesize note: 5 \% \& more",
        r"\end{table}",
    ):
        assert part in text, part
    assert text.isascii()
    assert text.count("{") == text.count("}")


class Cells(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data.strip())


def test_html_is_escaped() -> None:
    parser = Cells()
    parser.feed(TABLE.to_html())
    assert "α & <b>" in parser.text
    assert "50 % of f_w" in parser.text
    assert parser.tags.count("b") == 1  # the best cell's, not the label's
    assert parser.tags.count("tr") == 3


def test_rows_for_machines(filled: FilledLayout) -> None:
    rows = numeric_rows(filled, published_tables()["pacs"])
    assert len(rows) == 6
    found = {(r["row"], r["column"]): r for r in rows}
    erm = found["ERM", "Photo"]
    assert (erm["mean"], erm["n"], erm["missing"]) == (pytest.approx(55.0), 2, "")
    assert erm["error"] == pytest.approx(5 / 2**0.5)
    assert (erm["paper_mean"], erm["paper_error"]) == (94.1, 0.4)
    assert found["IRM", "Photo"]["mean"] is None
    assert found["IRM", "Photo"]["missing"] == "not run"
    back = list(csv.DictReader(io.StringIO(csv_text([], rows))))
    assert [float(r["mean"]) for r in back if r["mean"]] == pytest.approx([55.0, 55.0, 80.0])
    assert back[2]["missing"] == "not run"


def test_every_table_of_the_paper_can_be_written_empty(made: Made) -> None:
    for name, layout in PAPER_TABLES.items():
        table = render_table(
            fill_layout(layout, Collection(made("unheard_of")), TableOptions(split="in")), published_tables()[name]
        )
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert table.to_latex().isascii()
        assert "±" in table.to_markdown()
