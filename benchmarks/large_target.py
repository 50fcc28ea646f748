"""How much time and memory the listing of a very large target takes: hard links to a few images, in many folders.

It lists the links as `itta predict` does, in batches, and reads the first batches. Then it opens them as `itta adapt`
does, as a folder with a class for each folder, draws their order, makes room for the answers, and reads the first
batches. It prints one JSON object: for each command the seconds until all images are listed, the highest memory of
Python's objects meanwhile, the memory that stays, and images read in a second.
"""

import json
import os
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from PIL import Image

from itta.data.folder import find_images
from itta.data.loaders import batched, in_stream_order, stream
from itta.data.target import Expected, Target, open_stream
from itta.run.predict import read_images
from itta.run.unfinished_stream import Answers
from itta.settings import DataAccess, StreamSettings

LINKS = 50_000  # to one file: file systems allow 65,000
SIZE = 128  # pixels of a side
READ = 10  # batches


@dataclass(frozen=True)
class Options:
    images: int = 1_000_000  # hard links
    folders: int = 1000  # folders that they lie in
    batch: int = 32  # images of a batch
    directory: Path | None = None  # where to make them; without it, in the system's temporary directory


def make_links(root: Path, options: Options) -> None:
    rng = np.random.default_rng(0)
    for i in range(options.images):
        file = root / f"{i % options.folders}" / f"{i}.png"
        file.parent.mkdir(exist_ok=True)
        if i % LINKS == 0:
            origin = file
            Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(file)
        else:
            os.link(origin, file)


def timed_and_traced(make: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Make something twice: for the time it takes, and, slowly, for its memory."""
    began = time.perf_counter()
    make()
    seconds = time.perf_counter() - began
    tracemalloc.start()
    made = make()
    stays, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return made, {"seconds": seconds, "peak_bytes": peak, "bytes_that_stay": stays}


def measure_predict(folder: str, options: Options) -> dict[str, float]:
    def list_all() -> int:
        return sum(len(chunk) for chunk in batched(find_images([folder]), options.batch))

    images, found = timed_and_traced(list_all)
    began = time.perf_counter()
    read = sum(
        len(read_images(chunk, SIZE)[0]) for chunk in islice(batched(find_images([folder]), options.batch), READ)
    )
    return {"images": images, **found, "read_per_second": read / (time.perf_counter() - began)}


def measure_adapt(folder: str, options: Options) -> dict[str, float]:
    expected = Expected(tuple(sorted(str(i) for i in range(min(options.folders, options.images)))), SIZE)

    def open_all() -> tuple[Target, np.ndarray, np.ndarray, Answers]:
        target = open_stream(folder, expected, StreamSettings(), DataAccess(cache=False))
        order = in_stream_order(target.indices, 0)
        return target, order, target.images.labels[order], Answers(len(order))

    (target, order, _, _), found = timed_and_traced(open_all)
    began = time.perf_counter()
    read = sum(len(x) for _, x, _ in islice(stream(target.images, order, options.batch), READ))
    seconds = time.perf_counter() - began
    per_image = found["bytes_that_stay"] / len(order)
    return {"images": len(order), **found, "bytes_per_image": per_image, "read_per_second": read / seconds}


def measure(options: Options) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        make_links(Path(folder), options)
        return {"predict": measure_predict(folder, options), "adapt": measure_adapt(folder, options)}


if __name__ == "__main__":
    print(json.dumps(measure(tyro.cli(Options, description=__doc__)), indent=1))
