"""A long and nasty stream through every guarded adapter: does memory stay flat, and does a finite answer always come?

Small images, two at a time, in stretches: as trained; one class only; every image the same; now and then one that is
NaN; and an order made to mislead, in which each stretch holds the images of which the trained model is surest that
they show one class. Each adapter runs in a process of its own. Prints, for each, how much the process grew after the
first batches, the accuracy of its answers beside the trained model's, and how often the guard stepped in. What is known
already is kept in a file, so the same command goes on after an interruption.
"""

import ctypes
import gc
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
import tyro
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from itta.adapters import ADAPTERS, Guard, adapt
from itta.adapters.base import finite_images
from itta.algorithms import ALGORITHMS, Algorithm, Task
from itta.algorithms.base import Batch
from itta.hparams import default
from itta.models.source_statistics import collect_confusions, fisher_information
from itta.nn.backbone import Backbone
from itta.nn.style_bank import collect_styles
from itta.records import append_lines, read_lines
from itta.report.tables import Table, percent

SIZE, CLASSES = 8, 3
CLUTTER = 0.6  # share of another class, at the most, in an image of the stream
STRETCH = 200  # batches
WARM_UP = 1000  # batches before memory counts
STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Options:
    batches: int = 20_000  # of the stream
    batch: int = 2  # images in each
    adapters: tuple[str, ...] = tuple(ADAPTERS)  # to run
    guard: bool = True  # with the guard; without, the NaN images are left out
    slots: int = 2  # processes at a time
    out: Path | None = None  # file of results, one line for each adapter; those in it are not run again
    json: bool = False  # print one JSON object {adapter: …} and nothing else


@dataclass(frozen=True)
class Found:
    adapter: str
    batches: int
    batch: int
    guard: bool
    growth: float  # of the process's memory after the first batches, as a share
    answered: float  # share of the answers that were finite
    accuracy: float  # over the images that are not NaN
    source: float  # the trained model's, on the same images
    interventions: dict[str, int]
    seconds: float  # of processor time

    def of(self, options: Options) -> bool:
        """Whether this is what the options ask for."""
        asked = (options.batches, options.batch, options.guard)
        return self.adapter in options.adapters and (self.batches, self.batch, self.guard) == asked


class Tiny(Backbone):
    """Three convolutions with batch normalisation."""

    block_names = ("block1", "block2", "block3")
    dim = 16

    def __init__(self) -> None:
        super().__init__(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
        for name, n_in, stride in zip(self.block_names, (3, 16, 16), (2, 1, 2)):
            conv = nn.Conv2d(n_in, 16, 3, stride, padding=1, bias=False)
            setattr(self, name, nn.Sequential(conv, nn.BatchNorm2d(16), nn.ReLU()))

    def stem(self, x: Tensor) -> Tensor:
        return x


def draw(n: int, tint: float, generator: torch.Generator, clutter: float = 0.0) -> Batch:
    """Stripes across, stripes down or a chequerboard, in a tint, noisy; more or less of another one shines through."""
    y = torch.randint(CLASSES, (n,), generator=generator)
    row, column = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    patterns = torch.stack([row // 2 % 2, column // 2 % 2, (row // 2 + column // 2) % 2]).float()
    colour = torch.tensor([1.0, 0.6, tint])[None, :, None, None]
    other = patterns[(y + torch.randint(1, CLASSES, (n,), generator=generator)) % CLASSES]
    share = clutter * torch.rand(n, 1, 1, generator=generator)
    shape = (1 - share) * patterns[y] + share * other  # [B, S, S]
    return 0.6 * shape[:, None] * colour + 0.4 * torch.rand(n, 3, SIZE, SIZE, generator=generator), y


def train(name: str) -> Algorithm:
    """A model with what the adapter needs, trained for a moment on two tints."""
    torch.manual_seed(0)
    cls = ALGORITHMS[ADAPTERS[name].needs.training or "erm"]
    model = cls(Task(tuple("abc"), ("warm", "cold"), SIZE, Tiny), default(cls.Hparams, lr=1e-2)).train()
    for step in range(30):
        generator = torch.Generator().manual_seed(step)
        model.update([draw(16, tint, generator) for tint in (0.2, 1.0)])
    images = {str(t): [draw(32, t, torch.Generator().manual_seed(99))[0]] for t in (0.2, 1.0)}
    model.style_bank = collect_styles(model.backbone, images, model.backbone.block_names[:2])
    model.fisher = fisher_information(model, [x for batch in images.values() for x in batch])
    held_out = [draw(64, tint, torch.Generator().manual_seed(7)) for tint in (0.2, 1.0)]
    model.confusions = collect_confusions(model, held_out)  # as `itta train` does
    return model.eval()


def stretch_of(model: Algorithm, number: int, images: int) -> Batch:
    """The images of one stretch, in the order in which they come; the kinds take turns."""
    generator = torch.Generator().manual_seed(1000 + number)
    kind = number % 4
    x, y = draw(images if kind == 0 else 3 * images, 0.6, generator, CLUTTER)
    if kind == 1:
        chosen = (y == number // 4 % CLASSES).nonzero()[:, 0][:images]
    elif kind == 2:
        chosen = torch.zeros(images, dtype=torch.long)
    elif kind == 3:
        with torch.no_grad():
            sure = model.predict(x).softmax(1)[:, number // 4 % CLASSES]
        chosen = sure.argsort(descending=True)[:images]
    else:
        chosen = torch.arange(images)
    return x[chosen], y[chosen]


def memory() -> int:
    """Kilobytes in use that are the process's own, swapped out or not.

    Pages of libraries come and go as the system likes, and the C library keeps freed memory in reserve, so that even a
    process that keeps nothing alive seems to grow or to shrink by some percent: the reserve is given back first.
    """
    gc.collect()
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back is not None:
        give_back(0)
    lines = [line.split() for line in STATUS.read_text().splitlines()]
    return sum(int(words[1]) for words in lines if words[0] in ("RssAnon:", "VmSwap:"))


def run(name: str, options: Options) -> Found:
    torch.set_num_threads(1)
    began = time.process_time()
    model = train(name)
    adapter = adapt(model, name, guard=options.guard)
    warm_up = min(WARM_UP, options.batches // 2)
    seen = counted = finite = right = source_right = start = 0
    for number in range(0, options.batches, STRETCH):
        left = min(STRETCH, options.batches - number)
        x, y = stretch_of(model, number // STRETCH, left * options.batch)
        if options.guard:
            x[:: 50 * options.batch] = float("nan")
        else:  # nor is there anybody to answer a batch that is too small
            x, y = (part[: len(y) // options.batch * options.batch] for part in (x, y))
        sound = finite_images(x)
        with torch.no_grad():
            source_right += int((model.predict(x[sound]).argmax(1) == y[sound]).sum())
        for i, (images, labels) in enumerate(zip(x.split(options.batch), y.split(options.batch))):
            if number + i == warm_up:
                start = memory()
            logits = adapter(images)
            here = finite_images(images)
            seen, counted = seen + len(labels), counted + int(here.sum())
            finite += int(logits.isfinite().all(1).sum())
            right += int((logits.argmax(1) == labels)[here].sum())
    counts = dict(adapter.counts) if isinstance(adapter, Guard) else {}
    grown, shares = memory() / start - 1, (finite / seen, right / counted, source_right / counted)
    found = Found(
        name, options.batches, options.batch, options.guard, grown, *shares, counts, time.process_time() - began
    )
    if options.out is not None:
        append_lines(options.out, [asdict(found)])
    return found


def main(options: Options) -> None:
    earlier = read_lines(options.out) if options.out is not None and options.out.is_file() else []
    known = {f.adapter: f for f in (Found(**values) for values in earlier) if f.of(options)}
    with get_context("spawn").Pool(options.slots, maxtasksperchild=1) as pool:
        waiting = {n: pool.apply_async(run, (n, options)) for n in options.adapters if n not in known}
        for name in track(waiting, "stream", console=Console(stderr=True), disable=options.json):
            known[name] = waiting[name].get()
    found = {name: known[name] for name in options.adapters}
    if options.json:
        print(json.dumps({name: asdict(f) for name, f in found.items()}))
        return
    print(table_of(found).to_markdown())


def table_of(found: Mapping[str, Found]) -> Table:
    rows = []
    for name, f in found.items():
        did = ", ".join(f"{watch}: {n}" for watch, n in f.interventions.items())
        shares = f"{f.growth:+.1%}", f"{f.answered:.1%}", percent(f.accuracy), percent(f.source)
        rows.append([name, *shares, did])
    return Table("", ["adapter", "memory", "answered", "accuracy, %", "trained model, %", "the guard"], rows)


if __name__ == "__main__":
    if not STATUS.is_file():
        sys.exit("error: this benchmark reads a process's memory from /proc, which this system has not.")
    main(tyro.cli(Options, prog="python -m benchmarks.long_stream", description=__doc__))
