"""Records for the tests of the report. Every number in them is made up."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from itta.records import Record
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


@pytest.fixture
def made() -> Callable[..., list[Record]]:
    return made_up
