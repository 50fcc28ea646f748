"""--device and --precision, on every verb that computes."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import itta
from itta import records
from itta.cli import VERBS, main
from itta.errors import InputError

pytestmark = pytest.mark.slow

Fails = Callable[..., str]
COMPUTE = ("train", "sweep", "tune", "adapt", "predict", "estimate", "check", "cam", "profile", "export")
DEVICE_ONLY = ("demo", "inspect", "adopt")
NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")


@pytest.mark.parametrize("verb", [*COMPUTE, *DEVICE_ONLY])
def test_every_verb_that_computes_has_the_flags(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    printed = capsys.readouterr().out
    assert "--device" in printed
    assert ("--precision" in printed) == (verb in COMPUTE)


def test_no_other_verb_loads_a_model() -> None:
    """A new verb that computes belongs into one of the lists above."""
    idle = {"sweep-status", "report", "records", "data", "list"}
    assert VERBS.keys() == {*COMPUTE, *DEVICE_ONLY, *idle}


@NO_CUDA
def test_an_absent_device_is_refused_in_one_line(
    models: dict[str, Path], photos: Path, tmp_path: Path, fails: Fails
) -> None:
    model, new = models["itta"], tmp_path / "new"
    commands = {
        "train": [photos, "--out", new],
        "sweep": [photos, "--out", new, "--engine", "local"],
        "tune": [model],
        "adapt": [model, photos, "--domain", "night"],
        "predict": [model, photos / "night"],
        "estimate": [model, photos, "--domain", "night"],
        "check": [model, photos, "--domain", "night", "--out", new],
        "adopt": ["torch.nn:Identity", "--data", photos, "--out", new],
        "cam": [model, photos, "--domain", "night", "--out", tmp_path / "cam.png"],
        "profile": [model],
        "export": [model, "--torch", tmp_path / "model.pt2"],
        "demo": ["--out", new],
        "inspect": [model],
    }
    assert commands.keys() == {*COMPUTE, *DEVICE_ONLY}
    for verb, words in commands.items():
        said = fails(verb, *words, "--device", "cuda")
        assert "built without CUDA" in said or "do not fit on the 0 GPUs" in said, verb
        assert "cpu" in said, verb
    assert not new.exists()


def test_adapt_in_bf16_is_recorded(models: dict[str, Path], photos: Path, tmp_path: Path) -> None:
    words = ["adapt", models["itta"], photos, "--domain", "night", "--out", tmp_path, "--no-page", "--json"]
    assert main([*map(str, words), "--device", "cpu", "--precision", "bf16", "--adapter", "itta"]) == 0
    found = list(records.read(tmp_path / "records.jsonl"))
    assert {(r.device, r.precision, r.trial.precision) for r in found} == {("cpu", "bf16", "float32")}


@pytest.mark.slow
def test_train_and_export_in_bf16(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = ["--backbone", "small_cnn", "--weights", "none", "--image-size", "16", "--steps", "2", "--no-page"]
    out = tmp_path / "run"
    words = ["train", str(photos), "--target", "night", "--out", str(out), *tiny, "--set", "batch_size=4"]
    assert main([*words, "--precision", "bf16", "--device", "cpu"]) == 0
    assert json.loads((out / "model.json").read_text())["about"]["trial"]["precision"] == "bf16"
    assert (
        main(["export", str(out), "--torch", str(tmp_path / "m.pt2"), "--precision", "bf16"]) == 0
    )  # compares in float32
    capsys.readouterr()
    assert main([*words, "--device", "cpu"]) == 2  # the directory holds another trial
    assert re.search("differs in precision", capsys.readouterr().err)


def test_a_model_is_loaded_to_a_device(models: dict[str, Path]) -> None:
    assert next(itta.load(models["itta"], device="cpu").parameters()).device.type == "cpu"
    with pytest.raises(InputError, match="unknown device 'gpu'"):
        itta.load(models["itta"], device="gpu")
