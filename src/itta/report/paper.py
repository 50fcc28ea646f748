"""The numbers that the paper prints, to be shown beside ours.

Improved Test-Time Adaptation for Domain Generalization. Chen, Zhang, Song, Shan, Liu, CVPR 2023.
https://arxiv.org/abs/2304.04494
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Figure:
    """A printed number: a percentage with its ±, or a count."""

    mean: float
    error: float | None = None


@dataclass(frozen=True)
class Resources:
    """A row of the paper's table of resources. The paper names neither the batch size nor the machine."""

    mode: str  # source or itta
    phase: str  # predict: "exc." the adaptation; both: "inc."
    gflops: float
    million_parameters: float
    seconds: float


@cache
def published_resources() -> tuple[Resources, ...]:
    return tuple(Resources(*row) for row in read_paper()["resources"]["rows"])


def read_paper() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files("itta.report").joinpath("paper.json").read_text(encoding="utf-8"))
    return found


@cache
def published_tables() -> dict[str, dict[str, dict[str, Figure]]]:
    """The printed numbers: table -> row -> column -> figure."""
    return {
        name: {
            row: {column: Figure(*figure) for column, figure in zip(table["columns"], figures)}
            for row, figures in table["rows"].items()
        }
        for name, table in read_paper()["tables"].items()
    }
