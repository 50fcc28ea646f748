import hashlib
import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

import itta.data.emoji
from itta.data.dataset import split, target_indices
from itta.data.emoji import STYLES, EmojiImages, load_emoji
from itta.errors import InputError

FOLDER = Path(itta.data.emoji.__file__).parent / "emoji_styles"
INDEX = json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))

COUNTS = {
    "face": (105, 105, 107, 104),
    "hand": (43, 43, 42, 43),
    "person": (108, 108, 108, 83),
    "mammal": (64, 64, 64, 61),
    "other_animal": (56, 56, 57, 56),
    "plant": (23, 23, 23, 24),
    "fruit_veg": (36, 36, 37, 37),
    "food_drink": (83, 83, 83, 83),
    "vehicle": (49, 49, 49, 49),
    "building": (30, 30, 30, 30),
    "clothing": (41, 41, 41, 41),
    "office_tech": (85, 85, 85, 85),
}


def read_all(images: EmojiImages) -> torch.Tensor:
    return images.read(np.arange(len(images)))


def test_counts_per_class_and_style() -> None:
    dataset = load_emoji()
    assert dataset.classes == tuple(COUNTS) == tuple(INDEX["classes"])
    assert tuple(dataset.domains) == STYLES == tuple(INDEX["styles"])
    counted = [np.bincount(images.labels, minlength=len(COUNTS)) for images in dataset.domains.values()]
    assert dict(zip(COUNTS, zip(*np.array(counted).tolist()))) == COUNTS


@pytest.mark.parametrize("style", STYLES)
def test_pixels_are_those_that_were_built(style: str) -> None:
    pixels = read_all(load_emoji([style]).domains[style])
    assert pixels.dtype == torch.uint8
    content = pixels.permute(0, 2, 3, 1).contiguous().numpy().tobytes()
    assert hashlib.sha256(content).hexdigest() == INDEX["styles"][style]["sha256"]


@pytest.mark.parametrize("style", STYLES)
def test_names_are_unique_and_begin_with_the_code(style: str) -> None:
    images = load_emoji([style]).domains[style]
    assert [name.split()[0] for name in images.names] == INDEX["styles"][style]["tiles"]
    assert len(set(images.names)) == len(images)
    assert {"1f431 cat face", "1f697 automobile"} <= set(images.names)


@pytest.mark.parametrize("target", STYLES)
@pytest.mark.parametrize("trial_seed", range(3))
def test_strict_evaluates_on_nothing_that_was_trained_on(target: str, trial_seed: int) -> None:
    dataset = load_emoji(strict=True)
    parts = split(dataset, trial_seed)
    evaluated = target_indices(dataset, target, trial_seed)
    identities = {dataset.domains[target].groups[i] for i in evaluated}
    drawings = {tile.numpy().tobytes() for tile in dataset.domains[target].read(evaluated)}
    assert len(evaluated) > 200
    for domain, images in dataset.domains.items():
        train = parts[domain].train
        assert identities.isdisjoint(images.groups[i] for i in train)
        assert drawings.isdisjoint(tile.numpy().tobytes() for tile in images.read(train))


def test_emoji_with_the_same_drawing_share_their_identity() -> None:
    for images in load_emoji().domains.values():
        identity: dict[bytes, str] = {}
        for tile, group in zip(read_all(images), images.groups):
            assert identity.setdefault(tile.numpy().tobytes(), group) == group


def unit_vectors(images: EmojiImages) -> dict[str, np.ndarray]:
    """Map each code to its pixels, centred and scaled, so that a dot product is a correlation."""
    pixels = read_all(images).flatten(1).double().numpy()
    pixels -= pixels.mean(axis=1, keepdims=True)
    pixels /= np.linalg.norm(pixels, axis=1, keepdims=True)
    return dict(zip((name.split()[0] for name in images.names), pixels))


@pytest.mark.slow
def test_styles_do_not_duplicate_each_other() -> None:
    vectors = {style: unit_vectors(images) for style, images in load_emoji().domains.items()}
    for one, other in combinations(STYLES, 2):
        shared = vectors[one].keys() & vectors[other].keys()
        correlation = np.array([vectors[one][code] @ vectors[other][code] for code in shared])
        # Measured: 1.1 % between the two Fluent styles (dark animals, the top hat), none between any other two.
        bound = 0.015 if {one, other} == {"fluent-3d", "fluent-mono"} else 0.0
        assert len(shared) >= 690
        assert (correlation > 0.9).mean() <= bound, (one, other)


def test_files_are_small_and_come_with_their_licences() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 8e6
    for style in INDEX["styles"].values():
        assert (FOLDER / "LICENSES" / f"{style['licence']}.txt").is_file()


def test_image_size_rescales() -> None:
    small = load_emoji(["noto-mono"], image_size=32)
    pixels = small.domains["noto-mono"].read([5, 0, 5])
    full = load_emoji(["noto-mono"]).domains["noto-mono"].read([5, 0, 5])
    assert small.image_size == 32
    assert pixels.shape == (3, 3, 32, 32)
    halved = torch.nn.functional.avg_pool2d(full.float(), 2)
    assert (halved - pixels.float()).abs().mean() < 8


def test_reading_gives_a_copy() -> None:
    images = load_emoji(["twemoji"]).domains["twemoji"]
    before = images.read([0])
    images.read([0]).zero_()
    assert torch.equal(images.read([0]), before)


def test_mistakes_are_told() -> None:
    with pytest.raises(InputError, match="unknown emoji style 'twemojis'. Did you mean 'twemoji'?"):
        load_emoji(["twemojis"])
    with pytest.raises(InputError, match="image_size"):
        load_emoji(image_size=0)
