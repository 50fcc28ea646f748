"""The command line: one file per verb, which parses its flags and calls one function of the library."""

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from itta import __version__
from itta.cli.adapt import adapt
from itta.cli.adopt import adopt
from itta.cli.cam import cam
from itta.cli.check import check
from itta.cli.data import data
from itta.cli.demo import demo
from itta.cli.estimate import estimate
from itta.cli.export import export
from itta.cli.inspect import inspect
from itta.cli.list_ import list_
from itta.cli.parsing import parse
from itta.cli.predict import predict
from itta.cli.profile import profile
from itta.cli.records import records
from itta.cli.report import report
from itta.cli.screen import say, typed
from itta.cli.sweep import sweep, sweep_status
from itta.cli.train import train
from itta.cli.tune import tune
from itta.errors import InputError, InputWarning
from itta.text import printable

VERBS: dict[str, Callable[..., Any]] = {
    "demo": demo,
    "train": train,
    "adopt": adopt,
    "adapt": adapt,
    "tune": tune,
    "predict": predict,
    "estimate": estimate,
    "check": check,
    "sweep": sweep,
    "sweep-status": sweep_status,
    "report": report,
    "records": records,
    "cam": cam,
    "inspect": inspect,
    "export": export,
    "profile": profile,
    "data": data,
    "list": list_,
}

RESUMING = ("train", "sweep", "tune", "demo", "data")  # the same command goes on after an interruption
RESUMING_INTO_OUT = ("adapt", "predict")  # so do these with --out


@contextmanager
def warnings_in_one_line() -> Iterator[None]:
    """Print our own warnings without the line of code that gave them, and others as usual."""
    usual = warnings.showwarning

    def print_warning(message: Warning | str, category: type[Warning], *about: Any, **more: Any) -> None:
        if issubclass(category, InputWarning):
            say(f"itta: warning: {one_line(message)}", file=sys.stderr)
        else:
            usual(message, category, *about, **more)

    warnings.showwarning = print_warning
    try:
        yield
    finally:
        warnings.showwarning = usual


def one_line(message: object) -> str:
    """Return a message with the line ends of names shown escaped."""
    return printable(str(message))


def after_interruption(words: Sequence[str]) -> str:
    """Say what the same command does after an interruption.

    >>> after_interruption(["train", "emoji"]), after_interruption(["cam", "runs/sites"])
    ('train was interrupted; the same command goes on where it stopped.', 'cam was interrupted.')
    """
    verb = words[0] if words else "itta"
    if verb in RESUMING or (verb in RESUMING_INTO_OUT and any(w.partition("=")[0] == "--out" for w in words)):
        return f"{verb} was interrupted; the same command goes on where it stopped."
    if verb in RESUMING_INTO_OUT:
        return f"{verb} was interrupted; with --out, the same command would go on where it stopped."
    return f"{verb} was interrupted."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; a user's mistake is one line on the error stream and status 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words in (["--version"], ["-V"]):
        print(f"itta {__version__}")
        return 0
    typed.set(tuple(words))
    if words[:2] == ["sweep", "status"]:  # data of that name is ./status
        words[:2] = ["sweep-status"]
    try:
        with warnings_in_one_line():
            parse(words, VERBS)()
        sys.stdout.flush()  # here, where a reader that has gone is taken care of
    except InputError as error:
        say(f"itta: error: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        say(f"itta: {after_interruption(words)}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has what it wanted
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        say(f"itta: error: {one_line(where)}{error.strerror or error}.", file=sys.stderr)
        return 2
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error):
            raise
        say("itta: error: not enough memory: lower --batch-size or --image-size, or use fewer images.", file=sys.stderr)
        return 2
    return 0
