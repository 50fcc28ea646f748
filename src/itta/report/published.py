"""The paper's own figures, to be shown beside ours.

Improved Test-Time Adaptation for Domain Generalization. Chen, Zhang, Song, Shan, Liu, CVPR 2023.
https://arxiv.org/abs/2304.04494
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Figure:
    """A printed number: a percentage with its ±, or a count."""

    mean: float
    error: float | None = None


@cache
def published() -> dict[str, dict[str, dict[str, Figure]]]:
    """Table -> row -> column -> figure."""
    tables = json.loads(files("itta.report").joinpath("published.json").read_text(encoding="utf-8"))["tables"]
    return {
        name: {
            row: {column: Figure(*figure) for column, figure in zip(table["columns"], figures)}
            for row, figures in table["rows"].items()
        }
        for name, table in tables.items()
    }
