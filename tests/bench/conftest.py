"""What the tests of the bench share: a folder data set drawn in a moment, and a model trained on it."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from itta.bench.job import Job
from itta.cli import main
from itta.sweep import Adaptation
from itta.trial import Trial

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


@pytest.fixture
def make_job(photos: Path) -> Callable[..., Job]:
    """(out, changes of the trial) -> a tiny job with two adapters."""

    def make(out: Path, adapters: tuple[str, ...] = ("t3a", "itta+"), eval_every: int = 2, **changes: Any) -> Job:
        trial = Trial(
            dataset=str(photos),
            algorithm="erm",
            train_domains=("dawn", "noon"),
            test_domains=("night",),
            steps=4,
            backbone="small_cnn",
            weights="none",
            image_size=16,
            overrides={"batch_size": 4},
        )
        return Job(replace(trial, **changes), out, adaptation=Adaptation(adapters, batch_size=5), eval_every=eval_every)

    return make


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an algorithm that takes its time, in other processes too."""
    here = str(Path(__file__).parent)
    monkeypatch.syspath_prepend(here)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.setenv("ITTA_TEST_SECONDS", "0.3")
    return "slow_erm:SlowERM"


@pytest.fixture
def make_photos_without(tmp_path: Path) -> Callable[..., Path]:
    """(domain, images to keep of each class) -> photos of which a domain has but few."""

    def make(domain: str, keep: int) -> Path:
        root = draw_photos(tmp_path / "few")
        for path in (root / domain).rglob("*.png"):
            if int(path.stem) >= keep:
                path.unlink()
        return root

    return make
