"""What a run page tells beside the records: the stream, image by image, and some pictures of it.

One file, story.json, beside the records of a run. It holds what cannot be had again once the run is over; everything
that can be computed from it is computed when the page is made.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from itta.errors import InputError
from itta.files import replace_text

NAME = "story.json"
SCHEMA = 1


@dataclass(frozen=True)
class Picture:
    """An image of the stream; ``data`` is a data URI of a small JPEG or PNG."""

    name: str
    data: str
    label: str | None
    before: str  # what the trained model said
    after: str


@dataclass(frozen=True)
class Event:
    """Something that the guard did."""

    image: int  # images seen before the batch
    watch: str
    value: float | None  # None: not finite
    limit: float
    action: str


@dataclass(frozen=True)
class Stream:
    """One pass over a target. Classes are numbers, in the order in which the images came."""

    target: str
    adapter: str
    title: str  # which model, which seed: tells this stream from the others of a page
    classes: tuple[str, ...]
    batch_size: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    labels: tuple[int, ...] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    pictures: tuple[Picture, ...] = ()  # some of those whose answer changed
    cam: str = ""  # data URI of a grid of maps; empty: none was made
    cam_text: str = ""  # what it shows, for those who cannot see it
    seconds: Mapping[str, float] = field(default_factory=dict)  # "before", "after": per image


@dataclass(frozen=True)
class Story:
    title: str
    command: str  # repeats the run
    data: Mapping[str, Any] = field(default_factory=dict)  # what it was run on: name, domains, images, classes
    versions: Mapping[str, str] = field(default_factory=dict)
    streams: tuple[Stream, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Story":
        if values.get("schema", 1) > SCHEMA:
            raise InputError(f"schema {values['schema']}, and this version reads up to {SCHEMA}: update itta.")
        rest = {k: v for k, v in values.items() if k not in ("schema", "streams")}
        return Story(**rest, streams=tuple(_stream(s) for s in values["streams"]))


def _stream(values: Mapping[str, Any]) -> Stream:
    lists = {k: tuple(v) for k, v in values.items() if isinstance(v, list)}
    lists["events"] = tuple(Event(**e) for e in values["events"])
    lists["pictures"] = tuple(Picture(**p) for p in values["pictures"])
    return Stream(**{**values, **lists})


def write_story(folder: Path, story: Story) -> Path:
    path = folder / NAME
    replace_text(path, json.dumps(story.to_json()) + "\n")
    return path


def read_story(path: Path) -> Story:
    try:
        return Story.from_json(json.loads(path.read_text(encoding="utf-8")))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path} is damaged or not ours ({error!r}): delete it, or run again.") from error
