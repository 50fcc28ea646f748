"""The story of a run: the answers along each stream, image by image, with some pictures.

It is one file, story.json, beside the records of the run. It holds the facts that are lost when the run ends.
Everything that follows from them is computed later, when the page of the run is made.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from itta.files import replace_text
from itta.schema import Count, Finite, Names, Seconds, Share, check_schema, conform, damaged, read_json

STORY_FILE = "story.json"
SCHEMA = 2  # 2 added the estimates
MAX_STORY = 256 * 2**20  # bytes: a story holds the answers for every image


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

    image: Count  # images seen before the batch
    watch: str
    value: Finite | None  # None: not finite
    limit: Finite
    action: str


@dataclass(frozen=True)
class Likeness:
    """The order of a stream after some images, as itta+ sees it."""

    images: Count
    rho: Finite  # likeness of neighbours; 1 in random order
    kappa: Finite  # weight of the neighbours, 0 to 1


@dataclass(frozen=True)
class Diagnosed:
    """The diagnosis of itta+ along a stream."""

    history: tuple[Likeness, ...]
    prior: Mapping[str, Finite]  # class -> its frequency in the prior in use at the end
    changed: Mapping[str, Count]  # step -> images with another class after it
    new_domains: tuple[Count, ...] = ()  # images seen at each noticed change of domain
    left_out: Mapping[str, str] = field(default_factory=dict)  # part -> reason


@dataclass(frozen=True)
class Stream:
    """One pass over a target. Answers and labels are class numbers, in the order in which the images arrived."""

    target: str
    adapter: str
    title: str  # the model and its seed: distinguishes the streams of a page
    classes: Names
    batch_size: Count
    before: tuple[int, ...]
    after: tuple[int, ...]
    labels: tuple[int, ...] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    pictures: tuple[Picture, ...] = ()  # some of the images with a changed answer
    cam: str = ""  # data URI of a grid of heat maps; empty if there is none
    cam_text: str = ""  # describes the grid in words
    seconds: Mapping[str, Seconds] = field(default_factory=dict)  # per image, "before" and "after"
    diagnosis: Diagnosed | None = None  # of adapters that have one
    estimate: Mapping[str, Share] = field(default_factory=dict)  # without labels: "accuracy" after, "low" and "high"
    estimated: tuple[Share, ...] = ()  # how probably each answer is right, by the estimate


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
        check_schema(values, SCHEMA)
        return conform(Story, {k: v for k, v in values.items() if k != "schema"})


def write_story(folder: Path, story: Story) -> Path:
    path = folder / STORY_FILE
    replace_text(path, json.dumps(story.to_json()) + "\n")
    return path


def read_story(path: Path) -> Story:
    with damaged(path, "delete it, or run again"):
        return Story.from_json(read_json(path, MAX_STORY))
