"""What the tests of the bench share: a folder data set drawn in a moment, and a model trained on it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from itta.cli import main

TINTS = {"dawn": (255, 160, 90), "noon": (230, 230, 230), "night": (70, 90, 160)}
TINY = ("--backbone", "small_cnn", "--weights", "none", "--image-size", "16")


def draw_photos(root: Path, n: int = 6) -> Path:
    """root/domain/class/image: stripes across or down, noisy, in the tint of the domain."""
    rng = np.random.default_rng(0)
    for domain, tint in TINTS.items():
        for label in ("across", "down"):
            folder = root / domain / label
            folder.mkdir(parents=True)
            stripes = np.indices((24, 24))[0 if label == "across" else 1] // 3 % 2
            for i in range(n):
                pixels = stripes[..., None] * np.array(tint) * rng.uniform(0.3, 1, (24, 24, 1))
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
    return root


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_photos(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="session")
def train(photos: Path) -> Callable[..., int]:
    """(out, further flags) -> exit status of a tiny training."""

    def run(out: Path, *flags: str, steps: int = 2) -> int:
        command = ["train", str(photos), "--target", "night", *TINY, "--steps", str(steps), "--out", str(out), *flags]
        return main([*command, "--json", "--set", "batch_size=4"])

    return run


@pytest.fixture(scope="session")
def model(train: Callable[..., int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model trained with itta; tests that harm it take a copy."""
    out = tmp_path_factory.mktemp("trained") / "itta"
    assert train(out) == 0
    return out
