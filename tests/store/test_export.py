"""What is exported answers as the model does, elsewhere, for any batch; and a file is whole or not there."""

import json
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor

import itta
from itta.adapters import adapt
from itta.cli import main
from itta.data.folder import list_images
from itta.errors import InputError
from itta.functional.augment import to_float
from itta.nn.resnet import resnet18
from itta.run.predict import read_images
from itta.store import export as library
from itta.store.export import check_parity, export_onnx, export_torch, images, load_onnx, load_torch, metadata
from itta.store.model import read_description
from tests.fixtures.networks import sequential_cnn

pytestmark = pytest.mark.slow

TOLERANCE = 1e-5
EXPORTS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "onnx": (export_onnx, load_onnx),
    "torch": (export_torch, load_torch),
}


@pytest.fixture(scope="module")
def trained(model: Path) -> Any:
    return itta.load(model)


@pytest.fixture(scope="module")
def x(photos: Path) -> Tensor:
    read, _ = read_images(list_images([photos / "night"]), 16)
    return to_float(torch.stack([torch.from_numpy(image) for image in read]))


@pytest.mark.parametrize("format", EXPORTS)
@pytest.mark.parametrize(
    ("name", "settings"),
    [("source", {}), ("itta", {"lr": 1e-2}), ("itta+", {"guard": False}), ("t3a", {})],
    ids=["source", "itta", "itta+", "t3a"],
)
def test_it_answers_as_the_adapted_model(
    format: str, name: str, settings: dict[str, Any], trained: Any, x: Tensor, tmp_path: Path
) -> None:
    save, load = EXPORTS[format]
    adapter = adapt(trained, name, **settings)
    adapter.observe(x)
    path = tmp_path / "exported"
    found = save(adapter, path)
    assert found.path == path
    assert found.difference <= TOLERANCE
    assert list(tmp_path.iterdir()) == [path]
    run, frozen = load(path), adapter.frozen()
    for n in (1, 2, len(x)):
        torch.testing.assert_close(run(x[:n]), frozen(x[:n]), rtol=0, atol=TOLERANCE)
    if name != "source":
        assert (run(x) - adapt(trained, "source")(x)).abs().max() > 10 * TOLERANCE


@pytest.mark.parametrize("format", EXPORTS)
def test_itta_plus_on_a_network_of_ones_own(format: str, tmp_path: Path) -> None:
    """Its pass cannot be stopped after a block while it is traced."""
    torch.manual_seed(0)
    model = itta.wrap(sequential_cnn().eval(), image_size=16)
    x, labels = torch.rand(24, 3, 16, 16), torch.arange(24) % 3
    itta.collect(model, {"one": [(x[:12], labels[:12])], "two": [(x[12:] / 2, labels[12:])]})
    adapter = adapt(model, "itta+", guard=False)
    adapter.observe(x)
    assert "restyled" not in adapter.diagnosis()["left out"]
    save, load = EXPORTS[format]
    save(adapter, tmp_path / "exported")
    run, frozen = load(tmp_path / "exported"), adapter.frozen()
    for n in (1, 5):
        torch.testing.assert_close(run(x[:n]), frozen(x[:n]), rtol=0, atol=TOLERANCE)


def test_a_resnet_with_maps_of_a_few_pixels(tmp_path: Path) -> None:
    """There its convolutions are matrix products here, but not in the file."""
    from itta.algorithms import ALGORITHMS, Task
    from itta.hparams import default

    task = Task(("a", "b"), ("one",), 32, resnet18)
    model = ALGORITHMS["erm"](task, default(ALGORITHMS["erm"].Hparams))
    export_onnx(adapt(model, "source"), tmp_path / "r.onnx")
    import onnx

    graph = onnx.load(tmp_path / "r.onnx").graph
    assert sum(node.op_type == "Conv" for node in graph.node) == 20
    x = torch.rand(3, 3, 32, 32)
    torch.testing.assert_close(load_onnx(tmp_path / "r.onnx")(x), adapt(model, "source")(x), rtol=0, atol=TOLERANCE)


def test_classes_and_size_go_along(trained: Any, tmp_path: Path) -> None:
    adapter = adapt(trained, "source")
    export_onnx(adapter, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    stored = session.get_modelmeta().custom_metadata_map
    assert json.loads(stored["classes"]) == ["across", "down"]
    assert json.loads(stored["image_size"]) == [16, 16]
    assert stored["adapter"] == "source"
    (read,), (written,) = session.get_inputs(), session.get_outputs()
    assert (read.name, read.shape[1:], written.name, written.shape[1:]) == ("images", [3, 16, 16], "logits", [2])
    assert isinstance(read.shape[0], str)  # any batch size

    export_torch(adapter, tmp_path / "m.pt2")
    files = {library.METADATA: ""}
    torch.export.load(tmp_path / "m.pt2", extra_files=files)
    assert json.loads(files[library.METADATA]) == metadata(adapter)
    assert zipfile.is_zipfile(tmp_path / "m.pt2")


def test_a_difference_is_found_and_measured(trained: Any, tmp_path: Path) -> None:
    adapter = adapt(trained, "source")
    predict, about = adapter.frozen(), metadata(adapter)
    x = images(predict, about, 3)
    largest = max(1.0, float(predict(x).abs().max()))

    def shifted(by: float) -> Callable[[Tensor], Tensor]:
        return lambda x: predict(x) + by * (len(x) == 3)

    assert check_parity(predict, shifted(0.0), about, tmp_path) == 0
    assert check_parity(predict, shifted(5e-6), about, tmp_path) == pytest.approx(5e-6 / largest, rel=0.1)
    for by in (1e-3 * largest, float("nan")):
        with pytest.raises(InputError, match="answers differently from the model"):
            check_parity(predict, shifted(by), about, tmp_path)


@pytest.mark.parametrize("format", EXPORTS)
def test_a_file_that_answers_differently_is_not_written(
    format: str, trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m"
    path.write_bytes({"onnx": b"\x08", "torch": b"PK"}[format] + b"what was there")
    monkeypatch.setattr(library, f"load_{format}", lambda path: lambda x: torch.zeros(len(x), 2))
    with pytest.raises(InputError, match="was not written"):
        EXPORTS[format][0](adapt(trained, "source"), path)
    assert [p.read_bytes()[-14:] for p in tmp_path.iterdir()] == [b"what was there"]


@pytest.mark.parametrize("module", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_names_the_extra(
    module: str, trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=r"pip install 'itta\[export\]'"):
        export_onnx(adapt(trained, "source"), tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_the_command_exports_what_an_adapter_learned(
    model: Path, photos: Path, x: Tensor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"onnx": tmp_path / "m.onnx", "torch": tmp_path / "m.pt2"}
    flags = [f for format, path in files.items() for f in (f"--{format}", str(path))]
    adapting = ["--adapt-on", str(photos / "night"), "--adapter", "itta", "--set", "lr=0.01", "--batch-size", "5"]
    capsys.readouterr()
    assert main(["export", str(model), *flags, *adapting, "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    found = json.loads(printed.out)
    assert [(e["path"], e["adapter"]) for e in found] == [(str(path), "itta") for path in files.values()]
    assert all(e["difference"] <= TOLERANCE for e in found)

    trained, adapter = itta.load(model), adapt(itta.load(model), "itta", lr=0.01)
    from itta.data.loaders import stream
    from itta.data.target import open_target

    target = open_target(str(photos / "night"), read_description(model).expected, None)
    for _, batch, _ in stream(target.images, target.indices, 5, 0):
        adapter(batch)
    expected = adapter.frozen()(x)
    assert (expected - adapt(trained, "source")(x)).abs().max() > 10 * TOLERANCE
    for format, path in files.items():
        torch.testing.assert_close(EXPORTS[format][1](path)(x), expected, rtol=0, atol=TOLERANCE)


def test_the_plain_model_in_words(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model_copy := tmp_path / "copy").mkdir()
    for name in ("model.json", "model.safetensors"):
        shutil.copy(model / name, model_copy)
    (model_copy / "adapter.json").write_text(json.dumps({"chosen": {"adapter": "lame", "settings": {}}}))
    capsys.readouterr()
    assert main(["export", str(model_copy), "--torch", str(tmp_path / "m.pt2")]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.startswith(f"{tmp_path / 'm.pt2'}: source, torch.export; largest difference from the model ")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ([], ["--onnx FILE", "--torch FILE"]),
        (["--torch", "OUT", "--adapter", "itta"], ["--adapt-on"]),
        (["--torch", "OUT", "--set", "lr=1"], ["--adapt-on"]),
        (["--torch", "OUT", "--adapt-on", "DATA", "--adapter", "lame"], ["lame cannot be frozen", "rest of the batch"]),
        (["--torch", "OUT", "--adapt-on", "DATA", "--adapter", "magic"], ["unknown adapter 'magic'"]),
        (
            ["--torch", "OUT", "--adapt-on", "DATA", "--adapter", "itta", "--set", "episodic=true"],
            ["episodic=True", "keeps no update"],
        ),
        (["--torch", "OUT", "--adapt-on", "DATA", "--batch-size", "0"], ["--batch-size"]),
        (["--torch", "OUT/m.pt2"], ["no directory", "OUT"]),
        (["--torch", "HERE"], ["is a directory"]),
    ],
)
def test_mistakes_are_told_in_one_line(
    flags: list[str], told: list[str], model: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"OUT": str(tmp_path / "OUT"), "DATA": str(photos / "night"), "HERE": str(tmp_path)}
    command = [places.get(f, f.replace("OUT/", f"{places['OUT']}/")) for f in flags]
    capsys.readouterr()
    assert main(["export", str(model), *command]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    for word in told:
        assert word in said
    assert list(tmp_path.iterdir()) == []
