"""Batches. For training they depend only on seed and step; for evaluation they are a stream in a fixed order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from itta.data.dataset import Batch, DomainDataset, Images, Split
from itta.errors import InputError
from itta.functional.augment import Augmentation, augment, draw_augmentation, to_float
from itta.functional.augment_bytes import augment_bytes
from itta.functional.transfers import pin, send
from itta.seeds import derive_seed
from itta.settings import check_at_least, check_at_most

MAX_BATCH_SIZE = 4096
CPU = torch.device("cpu")
MAX_WORKERS = 64
_workers = 1  # threads that read images

Item = TypeVar("Item")
Made = TypeVar("Made")


class TrainLoader:
    """Draw one batch per domain and step, with replacement from the train split, independently of other steps.

    So a resumed run sees the same batches as one that never stopped, and the batches of a domain do not depend on the
    other domains.
    """

    def __init__(
        self,
        dataset: DomainDataset,
        splits: Mapping[str, Split],
        domains: Sequence[str],
        batch_size: int,
        seed: int,
        augment: bool = True,
    ) -> None:
        _check_batch_size(batch_size)
        if not domains:
            raise InputError(f"no domains to train on: choose from {', '.join(dataset.domains)}.")
        self._images = {name: dataset.domain(name) for name in domains}
        self._train = {name: splits[name].train for name in domains}
        for name, indices in self._train.items():
            if len(indices) == 0:
                raise InputError(
                    f"domain {name!r} has no images to train on after the split: add images, or hold out fewer."
                )
        self.domains, self.batch_size, self.seed, self.augment = tuple(domains), batch_size, seed, augment

    def batches(self, step: int) -> list[Batch]:
        """Return the batches of a step, one per domain, in the order of the domains."""
        return [make_batch(self.stored(domain, step), CPU) for domain in self.domains]

    def stored(self, domain: str, step: int) -> "StoredBatch":
        """Read the images of a domain and step as they are stored, and draw their augmentation."""
        train = self._train[domain]
        drawn = torch.randint(len(train), (self.batch_size,), generator=self._generator("batch", domain, step))
        indices = train[drawn.numpy()]
        pixels, labels = self._images[domain].read(indices), torch.from_numpy(self._images[domain].labels[indices])
        if not self.augment:
            return StoredBatch(pixels, labels, None)
        return StoredBatch(pixels, labels, draw_augmentation(len(pixels), self._generator("augment", domain, step)))

    def _generator(self, purpose: str, domain: str, step: int) -> torch.Generator:
        return torch.Generator().manual_seed(derive_seed(self.seed, purpose, domain, step))


class StoredBatch(NamedTuple):
    """Images as they are stored, and what is to be done to them."""

    pixels: Tensor  # uint8 [B, 3, S, S]
    labels: Tensor
    drawn: Augmentation | None

    def pinned(self, device: torch.device) -> "StoredBatch":
        return StoredBatch(pin(self.pixels, device), pin(self.labels, device), self.drawn)


def make_batch(stored: StoredBatch, device: torch.device) -> Batch:
    """Augment images on the device that will train on them. A CPU has a faster way, which rounds as torchvision does.

    Bytes travel to the device instead of floats, and the host does not wait for them.
    """
    pixels, labels, drawn = stored
    if drawn is not None and device.type == "cpu":
        return augment_bytes(pixels, drawn), labels
    pixels = send(pixels, device)
    return to_float(pixels) if drawn is None else augment(pixels, drawn), send(labels, device)


def use_workers(n: int) -> None:
    """Read images with this many threads from now on, in the whole process; 0 reads them when they are asked for.

    Batches and their order do not depend on it. Decoding a file and augmenting a batch leave the interpreter to others,
    so threads run side by side, share the memory of the images, and need no copies as processes would.
    """
    global _workers
    check_at_least(0, workers=n)
    check_at_most(MAX_WORKERS, workers=n)
    _workers = n


def make_ahead(
    make: Callable[[Item], Made], items: Iterable[Item], workers: int | None = None
) -> Iterator[tuple[Item, Made]]:
    """Yield each item with the result of ``make(item)``, in order. Threads make as many ahead as there are, and one."""
    workers = _workers if workers is None else workers
    if workers == 0:
        yield from ((item, make(item)) for item in items)
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="itta-prefetch")
    rest = iter(items)
    try:
        pending = deque((item, pool.submit(make, item)) for item in islice(rest, workers + 1))
        while pending:
            item, made = pending.popleft()
            ready = made.result()
            pending.extend((later, pool.submit(make, later)) for later in islice(rest, 1))
            yield item, ready
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def prefetch(
    loader: TrainLoader, first_step: int, last_step: int, device: torch.device = CPU, workers: int | None = None
) -> Iterator[tuple[int, list[Batch]]]:
    """Yield each step up to and including the last, with its batches, which threads make ahead.

    For another device than the CPU, the threads read the images and the device augments them.
    """
    steps = range(first_step, last_step + 1)
    if device.type == "cpu":
        return make_ahead(loader.batches, steps, workers)

    def read(step: int) -> list[StoredBatch]:
        return [loader.stored(domain, step).pinned(device) for domain in loader.domains]

    ahead = make_ahead(read, steps, workers)
    return ((step, [make_batch(batch, device) for batch in stored]) for step, stored in ahead)


def stream(
    images: Images, indices: Sequence[int] | np.ndarray, batch_size: int, seed: int | None = None, least: int = 1
) -> Iterator[tuple[np.ndarray, Tensor, Tensor]]:
    """Yield indices, float images and labels, each image once. The seed draws the order; None keeps it as given.

    If fewer than ``least`` images remain at the end, they join the batch before them.
    """
    _check_batch_size(batch_size)
    order = in_stream_order(indices, seed)
    return _read(images, order, cuts(len(order), batch_size, least))


def in_stream_order(indices: Sequence[int] | np.ndarray, seed: int | None) -> np.ndarray:
    """Return the indices in the order that the seed draws; None keeps it as given."""
    order = np.asarray(indices, dtype=np.int64)
    return order if seed is None else np.random.RandomState(derive_seed(seed, "stream")).permutation(order)


def cuts(n: int, size: int, least: int = 1) -> list[slice]:
    """Cut n items into parts of a size. If fewer than ``least`` remain at the end, they join the part before them.

    >>> cuts(7, 3), cuts(7, 3, least=2)
    ([slice(0, 3, None), slice(3, 6, None), slice(6, 7, None)], [slice(0, 3, None), slice(3, 7, None)])
    """
    starts = list(range(0, n, size))
    if len(starts) > 1 and n - starts[-1] < least:
        starts.pop()
    return [slice(start, stop) for start, stop in zip(starts, [*starts[1:], n])]


def batched(items: Iterable[Item], size: int, least: int = 1) -> Iterator[list[Item]]:
    """Cut items into lists as `cuts` does, without knowing their number beforehand.

    >>> list(batched("abcdefg", 3, least=2))
    [['a', 'b', 'c'], ['d', 'e', 'f', 'g']]
    """
    waiting: list[Item] = []
    for item in items:
        waiting.append(item)
        if len(waiting) == size + max(size, least):
            yield waiting[:size]
            del waiting[:size]
    yield from (waiting[part] for part in cuts(len(waiting), size, least))


def _read(images: Images, order: np.ndarray, parts: Sequence[slice]) -> Iterator[tuple[np.ndarray, Tensor, Tensor]]:
    """Read batch by batch. One worker does not read ahead: a user's own images may draw from torch's generator."""

    def read(part: slice) -> tuple[np.ndarray, Tensor, Tensor]:
        rows = order[part]
        return rows, to_float(images.read(rows)), torch.from_numpy(images.labels[rows])

    return (batch for _, batch in make_ahead(read, parts, _workers if _workers > 1 else 0))


def _check_batch_size(batch_size: int) -> None:
    if not 1 <= batch_size <= MAX_BATCH_SIZE:
        raise InputError(f"batch size {batch_size} is out of range: choose from 1 to {MAX_BATCH_SIZE}, for example 32.")
