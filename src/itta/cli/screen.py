"""What the verbs share on their way to the screen: tables, JSON, progress bars, and a look at the flags."""

import csv
import json
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import IO, Annotated, Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from tyro.conf import arg

from itta.errors import InputError
from itta.report.tables import Table

errors = Console(stderr=True)
Settings = Annotated[tuple[str, ...], arg(name="set", metavar="NAME=VALUE …")]


typed: ContextVar[tuple[str, ...]] = ContextVar("typed", default=())  # of the command that is being run


def command() -> str:
    """What was typed, ready to be typed again."""
    return shlex.join(["itta", *typed.get()])


def use_threads(n: int) -> None:
    if n > 0:
        import torch

        torch.set_num_threads(n)


def check_at_least(low: int, **values: int) -> None:
    for name, value in values.items():
        if value < low:
            raise InputError(f"--{name.replace('_', '-')} must be at least {low}, got {value}.")


def row_writer(stream: IO[str], format: str, columns: Sequence[str]) -> Any:
    if format == "jsonl":
        return lambda row: stream.write(json.dumps(row) + "\n")
    writer = csv.DictWriter(stream, columns)
    writer.writeheader()
    return writer.writerow


@contextmanager
def progress_bars(quiet: bool) -> Iterator[Any]:
    """Give report(name, done, total): a bar for each name, on the error stream if somebody watches it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, disable=quiet or not errors.is_terminal) as bars:
        tasks: dict[str, Any] = {}

        def report(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=done)

        yield report


def show(table: Table, justify: Literal["left", "right"] = "right") -> None:
    rich = RichTable(title=table.title, title_justify="left")
    for i, column in enumerate(table.columns):
        rich.add_column(column, justify=justify if i else "left")
    for row in table.rows:
        rich.add_row(*map(escape, row))
    Console().print(rich)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))
