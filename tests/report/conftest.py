"""Records and stories for the tests of the report. Every number in them is made up."""

import base64
import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from PIL import Image

from itta.records import Record
from itta.report.story import Event, Picture, Story, Stream
from itta.trial import Trial

PACS = ("art_painting", "cartoon", "photo", "sketch")


def made_up(
    algorithm: str,
    target: str = "sketch",
    seed: int = 0,
    accuracy: float = 0.5,
    adapted: dict[str, float] | None = None,
    validation: float = 0.8,
    step: int = 30,
    hparams_seed: int = 0,
    sources: tuple[str, ...] | None = None,
    hparams: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    **trial: Any,
) -> list[Record]:
    """The record of a model on a target of PACS, and one for each adapter with its accuracy."""
    sources = sources or tuple(d for d in PACS if d != target)
    what = Trial("PACS", algorithm, sources, (target,), hparams_seed, seed, **({"steps": 30} | trial))
    measured = {d: {"out": validation} for d in sources}
    measured |= {target: {"in": accuracy, "out": accuracy + 0.01, "all": accuracy + 0.002}}
    model = Record(what, step, "source", measured, hparams or {})
    found = [model]
    for adapter, value in (adapted or {}).items():
        on_target = {target: {"in": value, "out": value, "all": value}}
        found.append(replace(model, adapter=adapter, accuracy=on_target, adapter_hparams=settings or {}))
    return found


@pytest.fixture(scope="session")
def made() -> Callable[..., list[Record]]:
    return made_up


@pytest.fixture(scope="session")
def a_stream() -> Callable[..., Stream]:
    return told_stream


@pytest.fixture(scope="session")
def a_story() -> Callable[..., Story]:
    return told_story


def picture(shade: int = 0) -> str:
    """A data URI of a real image, 8 × 8."""
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (shade, 128, 255 - shade)).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def told_stream(title: str = "itta, seed 0", **changes: Any) -> Stream:
    """Eight images of three classes; adaptation helps twice, hurts once, and moves one wrong answer to another."""
    values: dict[str, Any] = {
        "target": "sketch",
        "adapter": "guarded itta",
        "title": title,
        "classes": ("cat", "dog", "elk"),
        "batch_size": 2,
        "labels": (0, 0, 0, 1, 1, 1, 2, 2),
        "before": (0, 1, 1, 1, 1, 0, 2, 0),
        "after": (0, 0, 0, 1, 2, 2, 2, 0),
        "settings": {"lr": 0.1},
        "events": (Event(2, "finite", None, 0.0, "rolled back"), Event(6, "entropy", 0.05, 0.1, "reset")),
        "pictures": (
            Picture("cat/a.png", picture(), "cat", "dog", "cat"),
            Picture("dog/b.png", picture(90), "dog", "dog", "elk"),
            Picture("dog/c.png", picture(180), "dog", "cat", "elk"),
        ),
        "cam": picture(30),
        "cam_text": "Grad-CAM maps of two images.",
        "seconds": {"before": 0.01, "after": 0.025},
    }
    return Stream(**(values | changes))


def told_story(*streams: Stream) -> Story:
    return Story(
        "PACS: sketch from three others",
        "itta adapt runs/pacs PACS --domain sketch",
        {"name": "PACS", "images": 8},
        {"itta": "0.1.0", "torch": "2.13.0"},
        streams or (told_stream(),),
    )
