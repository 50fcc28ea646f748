"""What tests of the command line share: folders of drawn images, two models of them, and commands that fail."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from itta.cli import main

TINTS = {"dawn": (255, 160, 90), "noon": (230, 230, 230), "night": (70, 90, 160)}
TINY = ("--backbone", "small_cnn", "--weights", "none", "--image-size", "16", "--steps", "2")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> Path:
    """root/domain/class/image: stripes across or down in the tint of the domain."""
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for domain, tint in TINTS.items():
        for axis, label in enumerate(("across", "down")):
            (root / domain / label).mkdir(parents=True)
            stripes = np.indices((24, 24))[axis] // 3 % 2
            for i in range(6):
                pixels = stripes[..., None] * np.array(tint) * rng.uniform(0.3, 1, (24, 24, 1))
                Image.fromarray(pixels.astype(np.uint8)).save(root / domain / label / f"{i}.png")
    return root


@pytest.fixture
def photos(drawn, tmp_path) -> Path:
    """A copy for each test, which may harm it."""
    return Path(shutil.copytree(drawn, tmp_path / "photos"))


@pytest.fixture(scope="module")
def models(drawn, tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    for algorithm in ("itta", "erm"):
        out = ["--out", str(root / algorithm), "--algorithm", algorithm]
        assert main(["train", str(drawn), "--target", "night", *TINY, *out, "--json", "--set", "batch_size=4"]) == 0
    return {algorithm: root / algorithm for algorithm in ("itta", "erm")}


@pytest.fixture
def fails(capsys) -> Callable[..., str]:
    """Run a command that must end with status 2 and one line; gives the line."""

    def run(*args: object) -> str:
        capsys.readouterr()
        assert main([str(a) for a in args]) == 2
        printed = capsys.readouterr()
        assert printed.err.startswith("itta: error: ")
        assert printed.err.count("\n") == 1, printed.err
        assert printed.out == ""
        return str(printed.err)

    return run


@pytest.fixture
def tree() -> Callable[[Path], dict[str, bytes]]:
    """All files of a folder, with their contents."""
    return lambda root: {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}
