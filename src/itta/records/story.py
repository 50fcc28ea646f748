"""The story of a run: the answers along each stream, image by image, with some pictures.

It is one file, story.json, beside the records of the run. It holds the facts that are lost when the run ends.
Everything that follows from them is computed later, when the page of the run is made.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from itta.errors import InputError
from itta.files import replace_text

STORY_FILE = "story.json"
SCHEMA = 1


@dataclass(frozen=True)
class Picture:
    """An image of the stream; ``data`` is a data URI of a small JPEG or PNG."""

    name: str
    data: str
    label: str | None
    before: str  # the answer of the model as trained
    after: str  # the answer of the adapter


@dataclass(frozen=True)
class Event:
    """An intervention of the guard."""

    image: int  # images seen before the batch
    watch: str
    value: float | None  # None: not finite
    limit: float
    action: str


@dataclass(frozen=True)
class Stream:
    """One pass over a target. Answers and labels are class numbers, in the order in which the images arrived."""

    target: str
    adapter: str
    title: str  # the model and its seed: distinguishes the streams of a page
    classes: tuple[str, ...]
    batch_size: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    labels: tuple[int, ...] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    pictures: tuple[Picture, ...] = ()  # some of the images with a changed answer
    cam: str = ""  # data URI of a grid of heat maps; empty if there is none
    cam_text: str = ""  # describes the grid in words
    seconds: Mapping[str, float] = field(default_factory=dict)  # per image, "before" and "after"


@dataclass(frozen=True)
class Story:
    title: str
    command: str  # the command that repeats the run
    data: Mapping[str, Any] = field(default_factory=dict)  # name, domains, images, classes
    versions: Mapping[str, str] = field(default_factory=dict)
    streams: tuple[Stream, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Story":
        if values.get("schema", 1) > SCHEMA:
            raise InputError(f"schema {values['schema']}, and this version reads up to {SCHEMA}: update itta.")
        rest = {k: v for k, v in values.items() if k not in ("schema", "streams")}
        return Story(**rest, streams=tuple(stream_from_json(s) for s in values["streams"]))


def stream_from_json(values: Mapping[str, Any]) -> Stream:
    lists = {k: tuple(v) for k, v in values.items() if isinstance(v, list)}
    lists["events"] = tuple(Event(**e) for e in values["events"])
    lists["pictures"] = tuple(Picture(**p) for p in values["pictures"])
    return Stream(**{**values, **lists})


def write_story(folder: Path, story: Story) -> Path:
    path = folder / STORY_FILE
    replace_text(path, json.dumps(story.to_json()) + "\n")
    return path


def read_story(path: Path) -> Story:
    try:
        return Story.from_json(json.loads(path.read_text(encoding="utf-8")))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path} is damaged or not ours ({error!r}): delete it, or run again.") from error
