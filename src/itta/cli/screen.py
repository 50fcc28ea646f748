"""Flags, tables and JSON on the screen, and progress bars, for all verbs."""

import json
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from typing import IO, Annotated, Any, Literal, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from rich.text import Text
from tyro.conf import OmitArgPrefixes, arg

from itta.progress import ReportProgress
from itta.report.tables import Table
from itta.settings import check_threads
from itta.text import csv_writer, printable

errors = Console(stderr=True)
LINE_EVERY = 30.0  # seconds between two lines of progress, where there is no terminal
NameValues = Annotated[tuple[str, ...], arg(name="set", metavar="NAME=VALUE …")]
Group = TypeVar("Group")
Flags = OmitArgPrefixes[Group]  # the fields of a dataclass as flags of their own names

typed: ContextVar[tuple[str, ...]] = ContextVar("typed", default=())  # the words of the command that runs


def typed_command() -> str:
    """Return the command as it was typed, ready to be typed again."""
    return shlex.join(["itta", *typed.get()])


def typed_settings(settings: Any) -> dict[str, Any]:
    """Return the fields of a dataclass of flags that were typed, with their values."""
    flags = {word.partition("=")[0].replace("-", "_") for word in typed.get() if word.startswith("--")}
    given = {f.name: getattr(settings, f.name) for f in fields(settings)}
    return {name: value for name, value in given.items() if {f"__{name}", f"__no_{name}"} & flags}


def use_threads(n: int) -> None:
    """Use this many CPU threads; 0 leaves the number to torch."""
    check_threads(n)
    if n > 0:
        import torch

        torch.set_num_threads(n)


def row_writer(stream: IO[str], format: str, columns: Sequence[str], heading: bool = True) -> Any:
    """Return a function that writes one row, as CSV, below a heading, or as a line of JSON."""
    if format == "jsonl":
        return lambda row: stream.write(json.dumps(row) + "\n")
    return csv_writer(stream, columns, heading)


@contextmanager
def progress_bars(quiet: bool = False) -> Iterator[ReportProgress]:
    """Yield a function that reports progress on the error stream: bars on a terminal, else a line now and then.

    ``quiet`` leaves out the bars, for rows that go to the same screen.
    """
    if not errors.is_terminal:
        yield lines_of_progress()
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, disable=quiet) as bars:
        tasks: dict[str, Any] = {}

        def report(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(printable(name), total=total)
            bars.update(tasks[name], completed=done)

        yield report


def lines_of_progress(every: float = LINE_EVERY) -> ReportProgress:
    """Return a function that prints a line of progress at most every so many seconds, and none at the very start."""
    last = time.monotonic()

    def report(name: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= every:
            last = time.monotonic()
            print(f"itta: {name}: {done} of {total}", file=sys.stderr, flush=True)

    return report


def show(table: Table, justify: Literal["left", "right"] = "right") -> None:
    """Print a table."""
    rich = RichTable(title=Text(printable(table.title)), title_justify="left")
    for i, column in enumerate(table.columns):
        rich.add_column(Text(printable(column)), justify=justify if i else "left")
    for row in table.rows:
        rich.add_row(*(Text(printable(cell, keep="\n")) for cell in row))
    Console().print(rich)


def say(*words: object, file: IO[str] | None = None) -> None:
    """Print a line; characters of names that would steer the terminal are shown escaped."""
    print(printable(" ".join(map(str, words)), keep="\n"), file=file)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))
