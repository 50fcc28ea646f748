"""The examples run as they are printed."""

import subprocess
import sys
from pathlib import Path

import pytest

from itta.cli import main

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, *args: str, cwd: Path) -> str:
    command = [sys.executable, str(EXAMPLES / name), *args]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_quickstart(tmp_path):
    printed = run("quickstart.py", cwd=tmp_path)
    assert printed.count("of 96 images") == 2


def test_own_algorithm(tmp_path):
    assert "100 % right" in run("own_algorithm.py", cwd=tmp_path)


def test_own_algorithm_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    out, method = str(tmp_path / "m"), "own_algorithm:SmoothERM"
    tiny = ["--backbone", "small_cnn", "--image-size", "16", "--steps", "2", "--json"]
    train = ["train", "emoji", "--algorithm", method, "--target", "noto-mono", "--out", out, *tiny]
    assert main([*train, "--set", "smoothing=0.2", "batch_size=2"]) == 0
    adapt = ["adapt", out, "emoji", "--adapter", "t3a", "--json"]
    assert main(adapt) == 2  # a file never makes itta import code
    assert main([*adapt, "--algorithm", method]) == 0


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("emoji") / "model"
    tiny = ["--backbone", "small_cnn", "--weights", "none", "--image-size", "16", "--steps", "2", "--json"]
    assert main(["train", "emoji", "--target", "noto-mono", "--out", str(out), *tiny, "--set", "batch_size=2"]) == 0
    return out


def test_adapt_stream(model, tmp_path):
    printed = run("adapt_stream.py", str(model), cwd=tmp_path)
    assert printed.count("of 16") == 4
    assert (tmp_path / "adapter.safetensors").is_file()
