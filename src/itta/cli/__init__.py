"""The command line: one file per verb, which parses its flags and calls one function of the library."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tyro

from itta.cli.adapt import adapt
from itta.cli.demo import demo
from itta.cli.list_ import list_
from itta.cli.predict import predict
from itta.cli.records import records
from itta.cli.report import report
from itta.cli.sweep import sweep, sweep_status
from itta.cli.train import train
from itta.cli.tune import tune
from itta.errors import InputError

VERBS: dict[str, Callable[..., Any]] = {
    "demo": demo,
    "train": train,
    "adapt": adapt,
    "tune": tune,
    "predict": predict,
    "sweep": sweep,
    "sweep-status": sweep_status,
    "report": report,
    "records": records,
    "list": list_,
}
app = tyro.extras.SubcommandApp()
for name, verb in VERBS.items():
    app.command(name=name)(verb)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; a user's mistake is one line on the error stream and status 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:2] == ["sweep", "status"]:  # data of that name is ./status
        words[:2] = ["sweep-status"]
    try:
        app.cli(
            args=words,
            prog="itta",
            description="Train on several image domains, adapt at test time without labels.",
            config=(tyro.conf.FlagCreatePairsOff,),
        )
        sys.stdout.flush()  # here, where a reader that has gone is taken care of
    except InputError as error:
        print(f"itta: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("itta: interrupted; of train, sweep and demo the same command goes on where it stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has what it wanted
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"itta: error: {where}{error.strerror or error}.", file=sys.stderr)
        return 2
    return 0
