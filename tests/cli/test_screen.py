"""What the verbs print beside their results: progress without a terminal, and the question before a long sweep."""

import sys
from typing import Any

import pytest

from itta.cli import screen
from itta.cli.screen import lines_of_progress, progress_bars
from itta.cli.sweep import LONG, ask_before_long
from itta.errors import InputError


def test_progress_without_a_terminal_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(screen.time, "monotonic", lambda: now[0])
    report = lines_of_progress()
    for second in range(0, 100, 10):
        now[0] = float(second)
        report("images", second, 100)
    printed = capsys.readouterr()
    assert printed.out == ""  # rows and JSON go there
    assert printed.err.splitlines() == [f"itta: images: {n} of 100" for n in (30, 60, 90)]


@pytest.mark.parametrize("quiet", [True, False])
def test_without_a_terminal_every_verb_reports_in_lines(
    quiet: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(screen, "lines_of_progress", lambda: lines_of_progress(0.0))
    with progress_bars(quiet) as report:
        report("steps", 1, 2)
    assert capsys.readouterr().err == "itta: steps: 1 of 2\n"


def found(seconds: float | None) -> dict[str, Any]:
    return {"seconds_left": seconds}


def test_a_long_sweep_without_a_terminal_needs_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    for seconds in (None, LONG):
        ask_before_long(found(seconds), 8)  # unknown or short: it starts
    with pytest.raises(InputError, match=r"8 trials take about .* measured on the first one.* Add --yes"):
        ask_before_long(found(2 * LONG), 8)


@pytest.mark.parametrize(("answer", "goes_on"), [("y", True), ("yes", True), ("", False), ("no", False)])
def test_a_long_sweep_asks_on_a_terminal(answer: str, goes_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        is_terminal = True

        def print(self, *words: object, **more: object) -> None:
            said.append(str(words[0]))

    said: list[str] = []
    monkeypatch.setitem(ask_before_long.__globals__, "errors", Terminal())  # the verb has the name of its module
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda: answer)
    if goes_on:
        ask_before_long(found(2 * LONG), 8)
    else:
        with pytest.raises(InputError, match="was not started"):
            ask_before_long(found(2 * LONG), 8)
    assert said
    assert said[0].startswith("8 trials take about ")
