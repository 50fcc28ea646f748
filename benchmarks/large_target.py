"""How much time and memory the listing of a very large target takes: hard links to a few images, in many folders.

It lists the links and cuts them into batches as `itta predict` does, and reads the first batches. It prints one JSON
object: seconds of the listing, the highest memory of Python's objects meanwhile, and images read in a second.
"""

import json
import os
import tempfile
import time
import tracemalloc
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import tyro
from PIL import Image

from itta.data.folder import find_images
from itta.data.loaders import batched
from itta.run.predict import read_images

LINKS = 50_000  # to one file: file systems allow 65,000


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


def measure(options: Options) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        make_links(Path(folder), options)
        began = time.perf_counter()
        found = sum(len(chunk) for chunk in batched(find_images([folder]), options.batch))
        seconds = time.perf_counter() - began
        tracemalloc.start()
        assert sum(len(chunk) for chunk in batched(find_images([folder]), options.batch)) == found
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        began = time.perf_counter()
        read = sum(
            len(read_images(chunk, 64)[0]) for chunk in islice(batched(find_images([folder]), options.batch), 10)
        )
        return {
            "images": found,
            "listing_seconds": seconds,
            "peak_bytes": peak,
            "read_per_second": read / (time.perf_counter() - began),
        }


if __name__ == "__main__":
    print(json.dumps(measure(tyro.cli(Options, description=__doc__))))
