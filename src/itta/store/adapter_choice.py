"""The adapter that `itta tune` chose for a model, stored beside it as adapter.json."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from itta.files import replace_text
from itta.schema import Finite, Name, Share, conform, damaged, read_json

FILE = "adapter.json"


@dataclass(frozen=True)
class Candidate:
    """An adapter with settings."""

    adapter: Name
    settings: dict[str, Any]

    def __str__(self) -> str:
        return " ".join([self.adapter, *(f"{k}={as_typed(v)}" for k, v in self.settings.items())])


@dataclass(frozen=True)
class Choice:
    """The chosen candidate, and the measurements that led to it."""

    chosen: Candidate
    gains: dict[str, dict[str, Finite]] = field(default_factory=dict)  # candidate -> domain -> accuracy gained
    plain: dict[str, Share] = field(default_factory=dict)  # stand-in domain -> accuracy without adaptation


def write_choice(model: Path, choice: Choice) -> None:
    """Store a choice with its model."""
    replace_text(model / FILE, json.dumps(asdict(choice), indent=2) + "\n")


def read_choice(model: Path) -> Candidate | None:
    """Return the candidate that `itta tune` chose for a model, or None if it was not tuned."""
    path = model / FILE
    if not path.is_file():
        return None
    with damaged(path, "delete it, or run itta tune again"):
        return conform(Choice, read_json(path)).chosen


def as_typed(value: Any) -> str:
    """Write a setting as on a command line.

    >>> as_typed(("layer3", "layer4")), as_typed(1e-4)
    ('layer3,layer4', '0.0001')
    """
    if isinstance(value, (tuple, list)):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
