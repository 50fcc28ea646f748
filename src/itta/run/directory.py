"""A run's directory: one process at a time, one trial for good."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import IO

from itta.errors import InputError
from itta.records import replace_text
from itta.trial import Trial

LOCK = ".lock"


class Busy(InputError):
    """Another process is at it."""


@contextmanager
def alone(out: Path, patience: float = 0.0) -> Iterator[None]:
    """Keep other processes out of a directory; the system lets go of it however this one ends.

    Waits so many seconds for another one to end.
    """
    out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + patience
    with open(out / LOCK, "w") as file:
        while True:
            try:
                lock(file)
                break
            except OSError:
                if time.monotonic() >= deadline:
                    raise Busy(
                        f"another process is training into {out}: wait for it, or choose another --out."
                    ) from None
                time.sleep(0.2)
        yield


def lock(file: IO[str]) -> None:
    try:
        import fcntl
    except ImportError:  # Windows has no such locks
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def refuse_another(out: Path, trial: Trial) -> None:
    """Complain about a directory that holds another trial than this one."""
    path = out / "trial.json"
    if path.is_file():
        found = read_trial(path)
        differing = [f.name for f in fields(Trial) if getattr(found, f.name) != getattr(trial, f.name)]
        if differing:
            raise InputError(
                f"{out} holds another trial (it differs in {', '.join(differing)}): choose another --out, or delete it."
            )


def claim(out: Path, trial: Trial) -> None:
    """Take the directory for this trial; refuse one that holds another."""
    path = out / "trial.json"
    refuse_another(out, trial)
    if not path.is_file() and not all(unfinished(file) or file.name == LOCK for file in out.iterdir()):
        (out / LOCK).unlink()  # it is not our directory
        raise InputError(f"{out} is not empty and holds no trial: choose another --out.")
    for file in filter(unfinished, out.iterdir()):
        file.unlink()
    replace_text(path, json.dumps(trial.to_json(), indent=2) + "\n")


def unfinished(file: Path) -> bool:
    """Whether a killed run was still writing this file of ours."""
    return any(file.match(f"{kind}.*.tmp") for kind in ("*.json*", "*.safetensors", "*.html"))


def read_trial(path: Path) -> Trial:
    try:
        return Trial.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} is damaged or not ours ({error!r}): choose another --out, or delete it.") from error
