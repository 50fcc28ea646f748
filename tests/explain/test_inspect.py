"""What training logs step by step, what f_w has become, and what `itta inspect` tells of both."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

import itta
from itta import records
from itta.cli import main
from itta.explain.training_logs import read_curves


@pytest.fixture(scope="module")
def now_and_then(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven steps, aligned in every third, 1, 4 and 7; recorded after four and seven."""
    out = tmp_path_factory.mktemp("trained") / "itta"
    command = ["train", str(photos), "--target", "night", "--out", str(out), "--steps", "7", "--eval-every", "4"]
    tiny = ["--backbone", "small_cnn", "--weights", "none", "--image-size", "16", "--json"]
    assert main([*command, *tiny, "--set", "batch_size=4", "align_every=3", "lr=1e-2"]) == 0
    return out


@pytest.fixture(scope="module")
def erm(train: Callable[..., int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "erm"
    assert train(out, "--algorithm", "erm") == 0
    return out


@pytest.fixture
def inspect(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict]:
    def run(*args: object) -> dict:
        capsys.readouterr()
        assert main(["inspect", *map(str, args), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_every_step_is_logged(now_and_then: Path) -> None:
    lines = list(records.read_lines(now_and_then / "steps.jsonl"))
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6, 7]
    assert [line["step"] for line in lines if "cosine" in line] == [1, 4, 7]
    assert all({"loss", "consistency"} < line.keys() for line in lines)


def test_a_record_averages_what_was_logged_in_the_steps_that_logged_it(now_and_then: Path) -> None:
    lines = list(records.read_lines(now_and_then / "steps.jsonl"))
    for record, part in zip(records.read(now_and_then / "records.jsonl"), (lines[:4], lines[4:])):
        for name, mean in record.logs.items():
            assert mean == pytest.approx(np.mean([line[name] for line in part if name in line]))
    assert record.logs["cosine"] == lines[6]["cosine"]


def test_curves_are_the_steps_or_else_the_records(now_and_then: Path, tmp_path: Path, inspect) -> None:
    found = inspect(now_and_then)
    cosines = [line["cosine"] for line in records.read_lines(now_and_then / "steps.jsonl") if "cosine" in line]
    row = found["training"]["cosine"]
    assert found["logs_from"] == "steps.jsonl"
    assert row["values"] == 3
    assert row["mean"] == pytest.approx(np.mean(cosines))
    assert (row["first_tenth"], row["last_tenth"]) == (cosines[0], cosines[-1])
    assert row["positive"] == pytest.approx(np.mean([c > 0 for c in cosines]))

    older = Path(shutil.copytree(now_and_then, tmp_path / "older"))
    (older / "steps.jsonl").unlink()
    curves, source = read_curves(older)
    assert source == "records.jsonl"
    assert curves["loss"][0].tolist() == [4, 7]
    (older / "records.jsonl").unlink()
    assert inspect(older)["training"] == {}


def files_of(folder: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.slow
def test_figures_and_numbers_are_written(now_and_then: Path, tmp_path: Path, inspect, capsys) -> None:
    before = files_of(now_and_then)
    out = tmp_path / "deep" / "inside"
    found = inspect(now_and_then, "--out", out)
    assert [Path(f).name for f in found["files"]] == ["training.png", "f_w.png", "inspect.json"]
    for name in ("training.png", "f_w.png"):
        with Image.open(out / name) as image:
            image.load()
    del found["files"]
    assert json.loads((out / "inspect.json").read_text()) == found
    assert files_of(now_and_then) == before
    assert main(["inspect", str(now_and_then)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for word in ("steps.jsonl", "cosine", "constant (dead)", "seen on source images"):
        assert word in printed


def test_a_model_without_f_w_tells_its_training(erm: Path, tmp_path: Path, inspect) -> None:
    found = inspect(erm, "--out", tmp_path)
    assert found["f_w"] is None
    assert list(found["training"]) == ["loss"]
    assert itta.load(erm).differences is None
    assert not (tmp_path / "f_w.png").exists()


def test_an_older_model_gets_the_range_it_is_given(model: Path, tmp_path: Path, inspect, capsys) -> None:
    older = Path(shutil.copytree(model, tmp_path / "older"))
    tensors = load_file(older / "model.safetensors")
    save_file({k: v for k, v in tensors.items() if not k.startswith("differences.")}, older / "model.safetensors")
    about = json.loads((older / "model.json").read_text())
    del about["weights_sha256"]  # models of version 0.1 have no checksum
    (older / "model.json").write_text(json.dumps(about))
    found = inspect(older, "--reach", "0.5")["f_w"]
    assert found["range"] == "±0.5, assumed"
    assert found["input_width"] == {"median": 1.0, "largest": 1.0}
    assert main(["inspect", str(older), "--reach", "0"]) == 2
    assert "above 0, got 0" in capsys.readouterr().err
