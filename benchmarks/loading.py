"""How fast images reach a training step: the cache of decoded images, relative to decoding each time.

All take random images of a folder root/domain/class/image and augment them as DomainBed does. `pillow` opens, crops,
mirrors and colours them one by one with Pillow and draws its random numbers with torch, as torchvision does; in `pillow
lean` they come from Python. `cache` is what `itta train` does: pixels from the cache, whole batches, `augment_bytes`.
`1 worker` and `2 workers` decode the files and do no more, with as many threads, as `itta predict --workers` does; the
column `speed up` compares them. Then a network trains on such batches, made by another thread, and the share of the
time that its steps wait for them is taken.
"""

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor

from benchmarks import timing
from benchmarks.timing import Job, Ratio, Result, compare, interleave
from itta.algorithms import ALGORITHMS, Task
from itta.data import load_dataset
from itta.data.dataset import DomainDataset, split
from itta.data.loaders import TrainLoader, batched, make_ahead, prefetch
from itta.errors import InputError
from itta.functional.augment import FLIP, GREY, JITTER, RATIO, SCALE
from itta.hparams import default
from itta.run.predict import read_images

BASE, ONE, TWO = "pillow", "1 worker", "2 workers"


class Draw(Protocol):
    """Where the random numbers of the chain come from."""

    def between(self, low: float, high: float) -> float: ...
    def below(self, n: int) -> int: ...
    def order(self, items: Sequence[Any]) -> list[Any]: ...


class TorchDraw:
    """One number at a time from torch, as torchvision does it."""

    def between(self, low: float, high: float) -> float:
        return float(torch.empty(1).uniform_(low, high))

    def below(self, n: int) -> int:
        return int(torch.randint(n, (1,)))

    def order(self, items: Sequence[Any]) -> list[Any]:
        return [items[i] for i in torch.randperm(len(items))]


class PythonDraw(random.Random):
    """From Python, which is the fastest."""

    between = random.Random.uniform
    below = random.Random.randrange

    def order(self, items: Sequence[Any]) -> list[Any]:
        return self.sample(items, len(items))


@dataclass(frozen=True)
class Options(timing.Options):
    data: str = ""  # a folder root/domain/class/image
    rounds: int = 5  # rounds to time
    image_size: int = 128  # pixels on each side
    batch: int = 32  # images of each domain
    threads: int = 1  # threads of torch
    batches: int = 4  # batches of each domain in a round
    steps: int = 8  # training steps of a round; 0 leaves them out


def measure(options: Options) -> Result:
    if not options.data:
        raise InputError("no images to load: give --data FOLDER with images at FOLDER/domain/class/image.")
    dataset = load_dataset(options.data, image_size=options.image_size)
    domains = tuple(dataset.domains)
    loader = TrainLoader(dataset, split(dataset, 0), domains, options.batch, seed=0)
    for images in dataset.domains.values():  # makes the cache if there is none, and checks it, as a process does once
        for start in range(0, len(images), options.batch):
            images.read(np.arange(start, min(start + options.batch, len(images))))
    n = options.batches * options.batch * len(domains)
    jobs = {
        BASE: Job(repeat(options.batches, lambda step: pillow_batches(dataset, options, TorchDraw())), n),
        "pillow lean": Job(repeat(options.batches, lambda step: pillow_batches(dataset, options, PythonDraw(step))), n),
        "cache": Job(repeat(options.batches, loader.batches), n),
        ONE: Job(partial(decode, dataset, options, 1), n),
        TWO: Job(partial(decode, dataset, options, 2), n),
    }
    seconds = interleave(jobs, options.rounds, options.json)
    times = compare(seconds, BASE)
    speed = compare({name: [1 / s for s in of_rounds] for name, of_rounds in seconds.items()}, BASE)
    up = compare({name: [1 / s for s in seconds[name]] for name in (ONE, TWO)}, ONE)
    columns = {"time": times, "speed": speed, "speed up": up}
    if options.steps:
        task = replace(options.task(), classes=dataset.classes, domains=domains)
        columns["waiting"] = {"cache": waiting(loader, task, options)}
    return Result(BASE, statistics.median(seconds[BASE]), columns)


def repeat(n: int, run: Callable[[int], object]) -> Callable[[], None]:
    def job() -> None:
        for step in range(n):
            run(step)

    return job


def decode(dataset: DomainDataset, options: Options, workers: int) -> None:
    """Decode the files of as many batches as a round has, in order."""
    files = [Path(name) for images in dataset.domains.values() for name in images.names]
    n = options.batches * options.batch * len(dataset.domains)
    chunks = batched(islice(cycle(files), n), options.batch)
    for _ in make_ahead(partial(read_images, size=options.image_size), chunks, workers):
        pass


def pillow_batches(dataset: DomainDataset, options: Options, draw: Draw) -> list[Tensor]:
    """One batch of each domain, decoded and augmented image by image."""
    chosen = [
        [images.names[draw.below(len(images))] for _ in range(options.batch)] for images in dataset.domains.values()
    ]
    return [torch.stack([pillow_image(Path(name), options.image_size, draw) for name in names]) for names in chosen]


def pillow_image(path: Path, size: int, draw: Draw) -> Tensor:
    """The chain of DomainBed for one file: crop, mirror, jitter in random order, grey, tensor."""
    with Image.open(path) as file:
        image = file.convert("RGB")
    image = image.crop(draw_box(image, draw)).resize((size, size), Image.Resampling.BILINEAR)
    if draw.between(0, 1) < FLIP:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    for change in draw.order((ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color, None)):
        if change is None:
            image = turn_hue(image, draw.between(-JITTER, JITTER))
        else:
            image = change(image).enhance(draw.between(1 - JITTER, 1 + JITTER))
    if draw.between(0, 1) < GREY:
        image = image.convert("L").convert("RGB")
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div_(255)


def draw_box(image: Image.Image, draw: Draw) -> tuple[int, int, int, int]:
    for _ in range(10):
        area = draw.between(*SCALE) * image.width * image.height
        ratio = math.exp(draw.between(math.log(RATIO[0]), math.log(RATIO[1])))
        width, height = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if width <= image.width and height <= image.height:
            left, top = draw.below(image.width - width + 1), draw.below(image.height - height + 1)
            return left, top, left + width, top + height
    return 0, 0, image.width, image.height


def turn_hue(image: Image.Image, turn: float) -> Image.Image:
    hue, saturation, value = image.convert("HSV").split()
    turned = np.array(hue) + np.uint8(round(turn * 255) % 256)
    return Image.merge("HSV", (Image.fromarray(turned), saturation, value)).convert("RGB")


def waiting(loader: TrainLoader, task: Task, options: Options) -> Ratio:
    """The share of the time in which a training step waits for its batches, median and spread over the rounds."""
    torch.manual_seed(0)
    erm = ALGORITHMS["erm"]
    algorithm = erm(task, default(erm.Hparams)).train()
    shares = []
    for _ in range(options.rounds):
        batches = prefetch(
            loader, 0, options.steps
        )  # one more than is counted: the first has nobody to work ahead of it
        algorithm.update(next(batches)[1])
        waited, began = 0.0, time.perf_counter()
        asked = began
        for _, batch in batches:
            waited += time.perf_counter() - asked
            algorithm.update(batch)
            asked = time.perf_counter()
        shares.append(waited / (asked - began))
    low, middle, high = np.percentile(shares, (25, 50, 75))
    return Ratio(float(middle), float(high - low))


if __name__ == "__main__":
    timing.main("loading", Options, measure, __doc__)
