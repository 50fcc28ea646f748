"""The inputs of a page: records, stories and logs of training steps, read from files and folders."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from itta.errors import InputError
from itta.records import STEPS, read_steps
from itta.records.collection import Collection, collect_records, files_of_runs, trial_of_folder
from itta.records.story import STORY_FILE, Story, Stream, read_story

PICTURE = re.compile(r"data:image/(png|jpeg|webp);base64,[A-Za-z0-9+/]+={0,2}")


@dataclass(frozen=True)
class PageInputs:
    collection: Collection
    stories: list[tuple[Path, Story]] = field(default_factory=list)
    steps: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # by the key of the trial


def read_inputs(paths: Sequence[Path], where: Mapping[str, str] | None = None) -> PageInputs:
    """Read the records, the stories and the logs of training steps in files and folders."""
    files = find_files(paths, STORY_FILE)
    stories = [(f, check_story(f, read_story(f))) for f in sorted(files, key=lambda f: (len(f.parts), f))]
    collection = collect_records([p for p in paths if p.name != STORY_FILE], where, needed=False)
    if not (collection.records or collection.started or stories):
        raise InputError(
            f"no records and no story in {', '.join(map(str, paths))}: name a folder that has a records.jsonl or a "
            f"{STORY_FILE}, such as the --out of itta train, itta adapt or itta demo."
        )
    kept = {r.trial.key for r in collection.records}
    steps = {
        trial.key: list(read_steps(file))
        for file in find_files(paths, STEPS)
        if (trial := trial_of_folder(file.parent)) and trial.key in kept
    }
    return PageInputs(collection, stories, steps)


def find_files(paths: Sequence[Path], name: str) -> list[Path]:
    """The files of a name among the paths and in the folders among them."""
    named = [p for p in paths if p.name == name and p.is_file()]
    return list(dict.fromkeys([*named, *(f for p in paths for f in files_of_runs(p, name))]))


def check_story(path: Path, story: Story) -> Story:
    """Refuse a story that contradicts itself, or with pictures that are not images."""
    for stream in story.streams:
        problem = problem_of_stream(stream)
        if problem:
            raise InputError(f"{path}, stream {stream.title!r}: {problem}. Delete it, or run again.")
    return story


def problem_of_stream(stream: Stream) -> str:
    """The first contradiction in a stream; empty if there is none."""
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
