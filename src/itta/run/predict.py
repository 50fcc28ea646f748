"""Predict image files one batch after another, and say which answers adaptation changed."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from itta.adapters.base import Adapter
from itta.data.images import read_image
from itta.data.loaders import batched, make_ahead
from itta.errors import InputError
from itta.functional.augment import to_float
from itta.run.evaluate import answer
from itta.text import printable, readable


@dataclass(frozen=True)
class Prediction:
    """One row of the result; an image that cannot be read has only an error."""

    file: str
    label: str = ""
    probability: float | None = None
    label_before: str = ""  # without adaptation
    probability_before: float | None = None
    changed: bool | None = None
    error: str = ""


def predict_files(
    adapter: Adapter, source: Adapter, files: Iterable[str | Path], batch_size: int
) -> Iterator[list[Prediction]]:
    """Yield a list of rows per batch, in the order of the files; unreadable files do not stop the rest.

    Files are read a few batches ahead, and no name is kept: there may be millions.
    """
    if batch_size < 1:
        raise InputError(f"batch size must be at least 1, got {batch_size}.")
    size = adapter.model.image_size
    chunks = batched(files, batch_size, adapter.needs.batch)
    for chunk, (images, errors) in make_ahead(partial(read_images, size=size), chunks):
        rows = iter(predict_images(adapter, source, images) if images else [])
        yield [
            Prediction(readable(str(f)), error=errors[f]) if f in errors else replace(next(rows), file=readable(str(f)))
            for f in chunk
        ]


def read_images(files: Sequence[str | Path], size: int) -> tuple[list[np.ndarray], dict[str | Path, str]]:
    """Read the images that can be read, and say why the others cannot."""
    images: list[np.ndarray] = []
    errors: dict[str | Path, str] = {}
    for file in files:
        try:
            images.append(read_image(file, size))
        except InputError as error:
            errors[file] = printable(str(error))
    return images, errors


def predict_images(adapter: Adapter, source: Adapter, images: Sequence[np.ndarray]) -> list[Prediction]:
    """Predict one batch without and with adaptation; the rows have no file name yet."""
    x = to_float(torch.from_numpy(np.stack(images)))
    classes = adapter.model.classes
    (q, before), (p, after) = (answer(a, x) for a in (source, adapter))
    rows = zip(after.tolist(), p.tolist(), before.tolist(), q.tolist())
    return [Prediction("", classes[i], round(p, 4), classes[j], round(q, 4), i != j) for i, p, j, q in rows]
