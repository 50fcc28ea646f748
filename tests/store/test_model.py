"""A trained model on disk: it comes back as it was, and a directory that is not one is told apart."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import itta
from itta.cli import main
from itta.errors import InputError
from itta.store.description import FORMAT_VERSION
from itta.store.model import save_model

Harm = Callable[[Path], object]


def edit(**changes: object) -> Harm:
    def harm(model: Path) -> None:
        path = model / "model.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return harm


def drop(name: str) -> Harm:
    def harm(model: Path) -> None:
        path = model / "model.json"
        path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != name}))

    return harm


def write(name: str, text: str) -> Harm:
    return lambda model: (model / name).write_text(text)


def halve(name: str) -> Harm:
    def harm(model: Path) -> None:
        whole = (model / name).read_bytes()
        (model / name).write_bytes(whole[: len(whole) // 2])

    return harm


def tensors(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Harm:
    path = "model.safetensors"
    return lambda model: save_file(change(load_file(model / path)), model / path)


def swap(found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Exchange the tensors of two names whose shapes differ."""
    first = next(iter(found))
    other = next(k for k, v in found.items() if k.startswith("model.") and v.shape != found[first].shape)
    return found | {first: found[other].clone(), other: found[first].clone()}


HARMS: dict[str, tuple[Harm, str]] = {
    "gone": (shutil.rmtree, "no model directory"),
    "no json": (lambda m: (m / "model.json").unlink(), "run the same itta train again"),
    "empty": (lambda m: [p.unlink() for p in m.iterdir()], "not a model"),
    "torn json": (halve("model.json"), "not JSON"),
    "no text": (lambda m: (m / "model.json").write_bytes(b"\xff\xfe\x00\x81"), "model.json"),
    "foreign json": (write("model.json", '{"name": "resnet"}'), "does not describe a model of itta"),
    "json list": (write("model.json", "[1, 2]"), "does not describe a model of itta"),
    "newer": (edit(format_version=FORMAT_VERSION + 1), f"format version {FORMAT_VERSION + 1}"),
    "algorithm": (edit(algorithm="magic"), "Choices: erm"),
    "algorithm type": (edit(algorithm=3), "model.json"),
    "backbone": (edit(backbone="resnet19"), "Choices:"),
    "backbone type": (edit(backbone=None), "model.json"),
    "hparams": (edit(hparams={"colour": 3}), "colour"),
    "no classes": (drop("classes"), "classes"),
    "more classes": (edit(classes=["across", "down", "round"]), "does not fit"),
    "no bank domains": (drop("style_bank_domains"), "style_bank_domains"),
    "no tensors": (lambda m: (m / "model.safetensors").unlink(), "model.safetensors"),
    "torn tensors": (halve("model.safetensors"), "model.safetensors"),
    "no safetensors": (write("model.safetensors", "x" * 100), "model.safetensors"),
    "swapped": (tensors(swap), "copy both files from the same run"),
    "missing": (tensors(lambda t: dict(list(t.items())[1:])), "copy both files"),
    "no bank": (tensors(lambda t: {k: v for k, v in t.items() if k.startswith("model.")}), "is not the file"),
}


@pytest.mark.parametrize("verb", ["adapt", "predict"])
@pytest.mark.parametrize("name", HARMS)
def test_what_is_wrong_with_a_directory_is_told_in_one_line(name, verb, model, photos, tmp_path, capsys):
    harm, told = HARMS[name]
    copy = shutil.copytree(model, tmp_path / "model")
    harm(copy)
    before = {p.name: p.read_bytes() for p in copy.iterdir()} if copy.is_dir() else {}
    capsys.readouterr()
    assert main([verb, str(copy), str(photos / "night")]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("itta: error:")
    assert printed.count("\n") == 1
    assert told in printed
    assert str(copy) in printed or "Choices" in printed or "colour" in printed
    assert (({p.name: p.read_bytes() for p in copy.iterdir()}) if copy.is_dir() else {}) == before


def test_a_model_without_a_trial_adapts_to_a_folder(model, photos, tmp_path, capsys):
    save_model(tmp_path / "model", itta.load(model), "small_cnn", {})
    assert main(["adapt", str(tmp_path / "model"), str(photos / "night"), "--json"]) == 0
    capsys.readouterr()
    assert main(["adapt", str(tmp_path / "model"), "emoji", "--json"]) == 2
    assert main(["adapt", str(tmp_path / "model"), str(photos / "night"), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2
    assert "does not name the trial" in told[1]


def test_saving_a_loaded_model_changes_nothing(model, tmp_path):
    about = json.loads((model / "model.json").read_text())["about"]
    save_model(tmp_path, itta.load(model), "small_cnn", about)
    for name in ("model.json", "model.safetensors"):
        assert (tmp_path / name).read_bytes() == (model / name).read_bytes()


def test_loading_draws_no_random_numbers_that_show(model):
    x = torch.rand(4, 3, 16, 16)
    logits = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        with torch.no_grad():
            logits.append(itta.load(model).predict(x))
    assert torch.equal(*logits)


@pytest.mark.parametrize("name", ["confusions.mean", "confusions.temperature", "differences.low", "confusions.extra"])
def test_statistics_of_another_shape_are_refused(name, model, tmp_path):
    shutil.copytree(model, tmp_path / "copy")
    description = json.loads((model / "model.json").read_text())
    tensors = load_file(model / "model.safetensors")
    assert name in tensors or name == "confusions.extra"
    save_file({**tensors, name: torch.zeros(2, 5, 7)}, tmp_path / "copy" / "model.safetensors")
    (tmp_path / "copy" / "model.json").write_text(json.dumps({**description, "weights_sha256": ""}))
    with pytest.raises(InputError, match=rf"does not fit.*{name} has the shape \(2, 5, 7\), expected"):
        itta.load(tmp_path / "copy")
