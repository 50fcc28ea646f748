"""The command of a benchmark that trains or adapts models, and the CSV file of its rows."""

import csv
import io
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import torch
import tyro

from itta.errors import InputError
from itta.files import replace_text

Options = TypeVar("Options")


def run_command(name: str, main: Callable[[Options], None], default: Options, about: str | None) -> None:
    """Read the options from the command line, and run on one thread: results depend on the number of threads."""
    torch.set_num_threads(1)
    try:
        main(tyro.cli(type(default), prog=f"python -m benchmarks.{name}", description=about, default=default))
    except InputError as error:
        sys.exit(f"error: {error}")


def write_rows(path: Path, rows: Iterable[Any], fields: Iterable[str]) -> None:
    """Write tuples as a CSV file, below the names of their fields."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([tuple(fields), *rows])
    replace_text(path, text.getvalue())
