"""The state of a trial, state.json in its directory: other processes read how far the trial is."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from itta.errors import InputError
from itta.files import replace_text
from itta.schema import Count, Seconds, conform, read_json

FILE = "state.json"
Word = Literal["done", "running", "failed", "waiting", "silent"]


@dataclass(frozen=True)
class State:
    """How far a trial is, and which process works on it."""

    word: Word
    step: Count = 0
    doing: str = ""
    reason: str = ""  # why it failed
    attempts: Count = 1  # how often it was started
    train_seconds: Seconds = 0.0
    adapted: Mapping[str, float | str] = field(default_factory=dict)  # evaluation -> seconds, or why it cannot be run
    host: str = ""
    pid: Count = 0
    started: Seconds = 0.0  # when the process started: a later one with the same id differs in it
    time: Seconds = 0.0


def write_state(out: Path, state: State) -> None:
    """Write the state of a trial into its directory."""
    replace_text(out / FILE, json.dumps(asdict(state), indent=2) + "\n")


def read_state(out: Path) -> State | None:
    """Read the state in a trial's directory; a missing or damaged one counts as none."""
    try:
        return conform(State, read_json(out / FILE))
    except (OSError, InputError):
        return None
