"""Names from outside on a terminal, in a spreadsheet and in a path."""

import io
import os
from pathlib import Path

import pytest

from itta.text import as_cell, as_file_name, printable, readable, write_csv

NAMES = [
    "photo", "Real World", "..", ".", "../../x", "/etc", "a/b", "a\\b", "a:b", "%2E", "%2E.", "", " ", "a.", "a ", "é",
    "\udce9", "\x1b[2J", "\n", "x" * 300, "x" * 300 + "y", "é" * 80, "+90%", "con*?", ".hidden",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_one_part_of_a_path(name: str, tmp_path: Path) -> None:
    path = tmp_path / "inside" / as_file_name(name)
    path.mkdir(parents=True)
    assert path.resolve().parent == tmp_path / "inside"
    assert os.listdir(tmp_path / "inside") == [as_file_name(name)]
    assert as_file_name(name).isprintable()


def test_different_names_are_different_parts() -> None:
    assert len({as_file_name(name) for name in NAMES}) == len(NAMES)


@pytest.mark.parametrize("text", ["=1+1", "+cmd", "-cmd", "@x", "\tx", "\rx", " =1"])
def test_a_formula_is_text_in_a_spreadsheet(text: str) -> None:
    assert as_cell(text).startswith("'")


@pytest.mark.parametrize("value", [-0.5, 3, None, True, "cat", "-5", "+90%", "-0.5", "1e"])
def test_numbers_and_words_stay_as_they_are(value: object) -> None:
    assert as_cell(value) == value


def test_csv_has_one_line_per_row_whatever_the_names() -> None:
    stream = io.StringIO()
    write_csv(stream, ["file", "n"], [{"file": name, "n": 1} for name in NAMES])
    assert stream.getvalue().count("\n") == len(NAMES) + 1
    stream.getvalue().encode()


@pytest.mark.parametrize("text", ["\x1b]0;x\x07", "a\x9bb", "\u202eabc", "\u2028", "a\rb", "\udce9"])
def test_nothing_steers_the_terminal(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert "\\" in shown
    readable(text).encode()
