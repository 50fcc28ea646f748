"""Torch datasets as domains: the pixels and labels of their items, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset, TensorDataset

from itta.data import load_dataset
from itta.data.torch_datasets import DatasetImages, from_torch
from itta.errors import InputError


class Files(Dataset):
    """Image files of one domain by class, opened with Pillow: what a user writes in ten lines."""

    def __init__(self, folder: Path, listed: bool = True) -> None:
        self.classes = sorted(p.name for p in folder.iterdir())
        self.items = [(f, i) for i, name in enumerate(self.classes) for f in sorted((folder / name).iterdir())]
        self.opened = 0
        if listed:
            self.targets = [label for _, label in self.items]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> tuple[Image.Image, int]:
        self.opened += 1
        path, label = self.items[i]
        return Image.open(path).convert("RGB"), label


@pytest.mark.parametrize("listed", [True, False])
def test_pixels_and_labels_are_those_of_the_folder(listed: bool, photos: Path) -> None:
    domains = {name: Files(photos / name, listed) for name in ("noon", "dawn", "night")}
    theirs, ours = from_torch(domains, 16), load_dataset(photos, image_size=16)
    assert theirs.classes == ours.classes
    assert list(theirs.domains) == list(ours.domains) == ["dawn", "night", "noon"]
    rows = np.arange(12)
    for name in theirs.domains:
        assert np.array_equal(theirs.domain(name).labels, ours.domain(name).labels)
        mine, expected = (d.domain(name).read(rows[::-1]) for d in (theirs, ours))
        assert torch.equal(mine, expected)
        assert mine.stride() == expected.stride()
        theirs.domain(name).read(rows)
        assert domains[name].opened == 12  # each once


FORMS: dict[str, Any] = {
    "bytes first": lambda a: torch.from_numpy(a.transpose(2, 0, 1).copy()),
    "floats": lambda a: torch.from_numpy(a.transpose(2, 0, 1).copy()).float() / 255,
    "array": lambda a: a,
    "picture": Image.fromarray,
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_an_image(form: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    images = DatasetImages([(FORMS[form](pixels), 1)], 8)
    assert np.array_equal(images.read([0])[0].permute(1, 2, 0).numpy(), pixels)
    assert images.labels.tolist() == [1]


def test_grey_and_subsets_and_tensors() -> None:
    grey = DatasetImages([(torch.full((1, 4, 4), 0.5), 0)], 2)
    assert grey.read([0]).unique().tolist() == [128]
    whole = TensorDataset(torch.rand(6, 3, 4, 4), torch.tensor([0, 1, 0, 1, 2, 2]))
    part = from_torch({"a": Subset(whole, [5, 1])}, 4)
    assert part.classes == ("0", "1", "2")
    assert part.domain("a").labels.tolist() == [2, 1]
    assert from_torch({"a": whole}, 4, classes=("x", "y", "z")).classes == ("x", "y", "z")


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ((torch.full((3, 4, 4), 2.0), 0), r"a/0: expected float images in \[0, 1\], got values from 2 to 2"),
        ((torch.full((3, 4, 4), float("nan")), 0), "expected float images"),
        ((torch.zeros(2, 4, 4), 0), r"expected an image with 3 channels"),
        ((torch.zeros(3, 4, 4, dtype=torch.int32), 0), "expected an image with 3 channels, got int32"),
        (("photo.png", 0), "got str"),
        ((torch.zeros(3, 4, 4), "dog"), "expected items .image, class number., got the label 'dog'"),
        (torch.zeros(3, 4, 4), "got the label None"),
    ],
)
def test_other_items_are_refused_in_one_line(item: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_torch({"a": [item]}, 4).domain("a").read([0])


def test_other_data_are_refused_in_one_line() -> None:
    for data, message in (({}, "expected a dict"), ({3: []}, "expected a dict"), ({"a": iter([])}, "with a length")):
        with pytest.raises(InputError, match=message):
            from_torch(data, 4)
