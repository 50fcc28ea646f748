"""A run's directory: one process writes at a time, and the trial never changes."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from itta.errors import InputError
from itta.files import make_folder, replace_text
from itta.locks import Busy, hold_lock
from itta.schema import damaged, read_json
from itta.trial import Trial

LOCK = ".lock"
TRIAL = "trial.json"
DIGESTS = {"fingerprint": "data", "dataset": "data", "weights_digest": "weights"}  # field -> its name in an error


@contextmanager
def alone(out: Path, patience: float = 0.0) -> Iterator[None]:
    """Keep other processes out of a directory, however this one ends; wait ``patience`` seconds for another one."""
    make_folder(out)
    try:
        with hold_lock(out / LOCK, patience):
            yield
    except Busy:
        raise Busy(f"another process is writing into {out}: wait for it, or choose another --out.") from None


def refuse_another(out: Path, trial: Trial) -> Trial:
    """Refuse a directory in which another trial began; return the trial to go on with.

    A directory of an earlier version names its data, or the weights it started from, by a path instead of a digest. If
    that path leads to the same place, and all else agrees, the trial goes on under its old key and seed.
    """
    path = out / TRIAL
    if not path.is_file():
        return trial
    held = read_trial(path)
    same: set[str] = set()
    if not held.fingerprint and same_place(held.dataset, trial.dataset):
        same |= {"fingerprint", "dataset"}
    if not held.weights_digest and same_place(held.weights, trial.weights):
        same |= {"weights_digest", "weights"}
    differing = [name for name in held.differences(trial) if name not in same]
    if differing and not began(out):
        return trial  # a mistake stopped the command that wrote it; this may be the command without the mistake
    if differing:
        names = ", ".join(dict.fromkeys(DIGESTS.get(name, name) for name in differing))
        older = " A training that began before there were recipes goes on with --recipe none."
        raise InputError(
            f"{out} holds another trial (it differs in {names}): choose another --out, or delete it."
            f"{older if 'head_start' in differing else ''}"
        )
    return held


def began(out: Path) -> bool:
    """Tell whether a directory holds anything of a training besides its trial."""
    return any(file.name not in (LOCK, TRIAL) and not unfinished(file) for file in out.iterdir())


def same_place(a: str, b: str) -> bool:
    """Tell whether two spellings of a path lead to the same place."""
    return a == b or Path(a).resolve() == Path(b).resolve()


def claim(out: Path, trial: Trial) -> Trial:
    """Take the directory for this trial; refuse one that holds another. Return the trial to go on with."""
    trial = refuse_another(out, trial)
    path = out / TRIAL
    if not path.is_file() and not all(unfinished(file) or file.name == LOCK for file in out.iterdir()):
        (out / LOCK).unlink(missing_ok=True)  # it is not our directory
        raise InputError(f"{out} is not empty and holds no trial: choose another --out.")
    for file in filter(unfinished, out.iterdir()):
        file.unlink()
    replace_text(path, json.dumps(trial.to_json(), indent=2) + "\n")
    return trial


def unfinished(file: Path) -> bool:
    """Tell whether a killed run was still writing this file."""
    return any(file.match(f"{kind}.*.tmp") for kind in ("*.json*", "*.safetensors", "*.html"))


def read_trial(path: Path) -> Trial:
    """Read the trial of a directory."""
    with damaged(path, "choose another --out, or delete it"):
        return Trial.from_json(read_json(path))
