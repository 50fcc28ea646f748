"""Everything that a page is made of, from files and folders."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from itta.errors import InputError
from itta.records import read_lines
from itta.records.collection import Gathered, gather, in_tuning
from itta.records.story import NAME, Story, Stream, read_story
from itta.trial import Trial

PICTURE = re.compile(r"data:image/(png|jpeg|webp);base64,[A-Za-z0-9+/]+={0,2}")
STEPS = "steps.jsonl"  # what every step of a training logged


@dataclass(frozen=True)
class Sources:
    gathered: Gathered
    stories: list[tuple[Path, Story]] = field(default_factory=list)
    steps: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # by the key of the trial


def read_sources(paths: Sequence[Path], where: Mapping[str, str] | None = None) -> Sources:
    """Read the records, the stories and what every step logged, under the given files and folders."""
    files = find(paths, NAME)
    stories = [(f, checked(f, read_story(f))) for f in sorted(files, key=lambda f: (len(f.parts), f))]
    gathered = gather([p for p in paths if p.name != NAME], where, needed=False)
    if not (gathered.records or gathered.started or stories):
        raise InputError(
            f"no records and no story in {', '.join(map(str, paths))}: name a folder that has a records.jsonl or a "
            f"{NAME}, such as the --out of itta train, itta adapt or itta demo."
        )
    kept = {r.trial.key for r in gathered.records}
    steps = {key: list(read_lines(f)) for f in find(paths, STEPS) if (key := key_of(f.parent)) in kept}
    return Sources(gathered, stories, steps)


def find(paths: Sequence[Path], name: str) -> list[Path]:
    inside = [f for p in paths if p.is_dir() for f in sorted(p.rglob(name)) if not in_tuning(f, p)]
    return list(dict.fromkeys([*(p for p in paths if p.name == name and p.is_file()), *inside]))


def key_of(run: Path) -> str | None:
    """The key of the trial that a run's folder is of."""
    try:
        return Trial.from_json(json.loads((run / "trial.json").read_text(encoding="utf-8"))).key
    except (OSError, ValueError, TypeError, KeyError):
        return None


def checked(path: Path, story: Story) -> Story:
    """Refuse a story that does not agree with itself, or has pictures that are none."""
    for stream in story.streams:
        problem = problem_of(stream)
        if problem:
            raise InputError(f"{path}, stream {stream.title!r}: {problem}. Delete it, or run again.")
    return story


def problem_of(stream: Stream) -> str:
    answers = (*stream.before, *stream.after)
    labels = stream.labels if stream.labels is not None else stream.before
    if not len(stream.before) == len(stream.after) == len(labels):
        return f"{len(stream.before)} answers before, {len(stream.after)} after, {len(labels)} labels"
    if not stream.before:
        return "no images"
    if not (min(answers) >= 0 and max(*answers, *labels) < len(stream.classes)):
        return f"answers or labels beyond its {len(stream.classes)} classes"
    maps = [("the grid of maps", stream.cam)] if stream.cam else []
    for name, data in [*((p.name, p.data) for p in stream.pictures), *maps]:
        if not PICTURE.fullmatch(data):
            return f"{name!r} is not a picture: expected data:image/png, jpeg or webp in base64, got {data[:40]!r}"
    return ""
