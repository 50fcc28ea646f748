"""The diagnosis of a stream on the page, from a story with known numbers."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from itta.records.story import Diagnosed, Likeness, Story, Stream, read_story, write_story
from itta.report.page.diagnosis_view import describe_order, view_diagnosis
from itta.report.page.document import write_page

FOUND = Diagnosed(
    (Likeness(2, 1.0, 0.0), Likeness(4, 1.3, 0.25), Likeness(8, 1.62, 1.0)),
    {"cat": 0.2, "dog": 0.7, "elk": 0.1},
    {"restyled": 1, "neighbours": 4},
    (4,),
    {"prototypes": "the head is not linear"},
)


def test_a_stream_is_shown_with_its_diagnosis(a_stream: Callable[..., Stream]) -> None:
    view = view_diagnosis(a_stream(diagnosis=FOUND))
    assert view is not None
    assert view.chart is not None
    assert [line.name[0] for line in view.chart.lines] == ["ρ", "κ"]
    assert [mark.kind for mark in view.chart.marks] == ["new domain"]
    assert [row[1:] for row in view.changes.rows] == [["1", "12.5"], ["4", "50.0"]]
    assert view.prior.rows == [["dog", "70.0", "12.5"], ["cat", "20.0", "50.0"], ["elk", "10.0", "37.5"]]
    assert view.left_out == ["Left out: prototypes. Reason: the head is not linear."]


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ((), "No change of domain was noticed."),
        ((Likeness(9, 1.02, 0.0),), "no more alike than chance (ρ = 1.02), so they did not count"),
        ((Likeness(9, 1.3, 0.25),), "1.30 times as alike as chance (ρ), so they counted with weight κ = 0.25"),
        ((Likeness(9, 2.0, 1.0),), "counted in full"),
    ],
)
def test_the_order_is_described_in_words(history: tuple[Likeness, ...], expected: str) -> None:
    assert expected in describe_order(replace(FOUND, history=history, new_domains=()))


def test_other_adapters_have_none(a_stream: Callable[..., Stream]) -> None:
    assert view_diagnosis(a_stream()) is None


def test_the_page_shows_the_diagnosis_of_the_file(
    tmp_path: Path, a_stream: Callable[..., Stream], a_story: Callable[..., Story]
) -> None:
    write_story(tmp_path, a_story(a_stream(diagnosis=FOUND)))
    assert read_story(tmp_path / "story.json").streams[0].diagnosis == FOUND
    text = write_page(tmp_path / "page.html", [tmp_path]).read_text()
    for expected in ("The stream as itta+ sees it", "Are neighbouring images alike?", "Which step changed answers"):
        assert expected in text
