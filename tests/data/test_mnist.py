"""RotatedMNIST and ColoredMNIST from tiny idx files, against DomainBed's recipe written out."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from itta.data import load_dataset
from itta.data.mnist import load_mnist, read_idx
from itta.errors import InputError
from itta.settings import DataAccess

N_TRAIN, N_TEST = 40, 9


def idx(values: np.ndarray) -> bytes:
    shape = b"".join(n.to_bytes(4, "big") for n in values.shape)
    return bytes((0, 0, 8, values.ndim)) + shape + values.astype(np.uint8).tobytes()


@pytest.fixture
def values() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    n = N_TRAIN + N_TEST
    return rng.integers(0, 256, (n, 28, 28), dtype=np.uint8), rng.integers(0, 10, n, dtype=np.uint8)


@pytest.fixture
def root(tmp_path: Path, values) -> Path:
    """A folder with compressed training files and plain test files: users have both."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for kind, array in (("images-idx3-ubyte", values[0]), ("labels-idx1-ubyte", values[1])):
        (raw / f"train-{kind}.gz").write_bytes(gzip.compress(idx(array[:N_TRAIN])))
        (raw / f"t10k-{kind}").write_bytes(idx(array[N_TRAIN:]))
    return tmp_path


@pytest.mark.parametrize("seed", [0, 360234358])
def test_rotated(root: Path, values, seed: int) -> None:
    images, digits = values
    data = load_dataset("RotatedMNIST", image_size=28, access=DataAccess(data_root=root), seed=seed)
    assert tuple(data.domains) == ("0", "15", "30", "45", "60", "75")
    torch.manual_seed(seed)  # as at the start of a run of DomainBed
    shuffle = torch.randperm(len(images)).numpy()
    for i, (domain, found) in enumerate(data.domains.items()):
        order = shuffle[i::6]
        assert found.labels.tolist() == digits[order].tolist()
        assert found.names == [f"mnist-{j:05d}" for j in order]
        turned = [np.asarray(Image.fromarray(images[j]).rotate(int(domain), Image.Resampling.BILINEAR)) for j in order]
        expected = torch.from_numpy(np.stack(turned))[:, None].expand(-1, 3, -1, -1)
        assert torch.equal(found.read(np.arange(len(found))), expected)
    assert torch.equal(data.domains["0"].read([1])[0, 0], torch.from_numpy(images[shuffle[6]]))


@pytest.mark.parametrize("seed", [0, 7])
def test_coloured(root: Path, values, seed: int) -> None:
    images, digits = (torch.from_numpy(v) for v in values)
    data = load_dataset("ColoredMNIST", image_size=28, access=DataAccess(data_root=root), seed=seed)
    torch.manual_seed(seed)
    shuffle = torch.randperm(len(images))
    for i, (domain, noise) in enumerate({"+90%": 0.1, "+80%": 0.2, "-90%": 0.9}.items()):
        order = shuffle[i::3]
        low = (digits[order] < 5).float()
        label = (low - (torch.rand(len(order)) < 0.25).float()).abs()
        colour = (label - (torch.rand(len(order)) < noise).float()).abs()
        found = data.domains[domain]
        assert found.labels.tolist() == label.long().tolist()
        pixels = found.read(np.arange(len(found)))
        for x, j, c in zip(pixels, order, colour.long()):
            assert torch.equal(
                x[c], images[j]
            )  # the other one of DomainBed's two channels is zero, and so is our third
            assert x[1 - c].sum() == 0
            assert x[2].sum() == 0
    assert data.classes == ("5-9", "0-4")


@pytest.mark.slow
def test_colours_follow_labels_as_often_as_they_should(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    n = 6000
    for part in ("train", "t10k"):
        (raw / f"{part}-images-idx3-ubyte").write_bytes(idx(np.full((n, 28, 28), 9)))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(idx(np.arange(n) % 10))
    data = load_mnist("ColoredMNIST", tmp_path / "MNIST", image_size=1)
    for domain, share in {"+90%": 0.9, "+80%": 0.8, "-90%": 0.1}.items():
        images = data.domains[domain]
        green = images.read(np.arange(len(images)))[:, 1].sum((1, 2)).numpy() > 0
        assert abs((green == images.labels).mean() - share) < 0.03


def test_domains_can_be_chosen_and_are_the_same(root: Path) -> None:
    every = load_mnist("ColoredMNIST", root / "MNIST", image_size=28)
    some = load_mnist("ColoredMNIST", root / "MNIST", image_size=28, domains=["-90%"])
    assert tuple(some.domains) == ("-90%",)
    assert torch.equal(some.domains["-90%"].read([0, 1]), every.domains["-90%"].read([0, 1]))
    with pytest.raises(InputError, match="unknown domain '90'"):
        load_mnist("ColoredMNIST", root / "MNIST", image_size=28, domains=["90"])


def test_another_size_and_a_size_of_none(root: Path) -> None:
    for name in ("RotatedMNIST", "ColoredMNIST"):
        data = load_dataset(name, image_size=16, access=DataAccess(data_root=root))
        assert next(iter(data.domains.values())).read([0, 1, 2]).shape == (3, 3, 16, 16)
        with pytest.raises(InputError, match="image_size"):
            load_dataset(name, image_size=0, access=DataAccess(data_root=root))


def test_files_that_are_missing_or_broken_are_named(root: Path) -> None:
    path = root / "MNIST/raw/train-images-idx3-ubyte.gz"
    good = path.read_bytes()
    for broken in (good[:50], b"", gzip.compress(b"\0\0\x08\x01" + bytes(20)), gzip.compress(b"x")):
        path.write_bytes(broken)
        with pytest.raises(InputError, match=r"train-images-idx3-ubyte\.gz"):
            load_dataset("RotatedMNIST", image_size=28, access=DataAccess(data_root=root))
    path.unlink()
    with pytest.raises(InputError, match=r"there is no .*train-images.*itta data get"):
        load_dataset("RotatedMNIST", image_size=28, access=DataAccess(data_root=root))
    path.write_bytes(gzip.compress(idx(np.zeros((3, 28, 28)))))
    with pytest.raises(InputError, match="3 images but 40 labels"):
        load_dataset("RotatedMNIST", image_size=28, access=DataAccess(data_root=root))


def test_read_idx(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(idx(np.arange(6).reshape(1, 2, 3)))
    assert read_idx(tmp_path / "a", 3).tolist() == [[[0, 1, 2], [3, 4, 5]]]
    with pytest.raises(InputError, match="2 axes"):
        read_idx(tmp_path / "a", 2)
