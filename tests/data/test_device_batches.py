"""Batches for another device than the CPU: bytes travel, and the device augments them."""

import torch

from itta.data.dataset import DomainDataset, split
from itta.data.emoji import load_emoji
from itta.data.loaders import TrainLoader, make_batch, prefetch
from itta.functional.augment import augment, to_float
from tests.fixtures.device_walk import PRETENDED, pretended_device

DOMAINS = ("twemoji", "noto-mono")


def loader(data: DomainDataset, augmented: bool) -> TrainLoader:
    return TrainLoader(data, split(data, 0), DOMAINS, 4, 0, augmented)


def test_the_device_augments_with_the_same_draws() -> None:
    batches = loader(load_emoji(image_size=16), True)
    with pretended_device() as watch:
        ((step, made), *_) = prefetch(batches, 3, 3, PRETENDED)
        assert step == 3
        assert not watch.waits
        assert not watch.blocking_uploads
        for domain, (x, y) in zip(DOMAINS, made, strict=True):
            stored = batches.stored(domain, 3)
            assert x.device == y.device == PRETENDED
            assert stored.drawn is not None
            torch.testing.assert_close(x.cpu(), augment(stored.pixels, stored.drawn), rtol=1e-6, atol=1e-6)
            assert torch.equal(y.cpu(), stored.labels)


def test_the_cpu_augments_nearly_the_same() -> None:
    """The CPU's own way rounds the box of the crop to whole pixels."""
    stored = loader(load_emoji(image_size=64), True).stored("twemoji", 0)
    assert stored.drawn is not None
    near, _ = make_batch(stored, torch.device("cpu"))
    assert (near - augment(stored.pixels, stored.drawn)).abs().mean() < 0.03


def test_images_without_augmentation_are_the_stored_ones() -> None:
    batches = loader(load_emoji(image_size=16), False)
    with pretended_device():
        ((_, made), *_) = prefetch(batches, 0, 0, PRETENDED)
        assert torch.equal(made[0][0].cpu(), to_float(batches.stored("twemoji", 0).pixels))
