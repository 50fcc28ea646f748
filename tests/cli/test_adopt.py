"""itta adopt: a network from elsewhere becomes a model directory that the other verbs take."""

import json
import shlex
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import itta
from itta.cli import main
from itta.data import load_dataset
from tests.fixtures.networks import sequential_cnn

MODULE = "own_networks:make_model"


@pytest.fixture
def own_networks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("own_networks")
    module.make_model = lambda: sequential_cnn(2)  # type: ignore[attr-defined]
    module.wrong = lambda: 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_networks", module)
    return module


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Weights of a network that answers the second class for stripes down, most of the time."""
    torch.manual_seed(3)
    save_file(sequential_cnn(2).state_dict(), tmp_path / "w.safetensors")
    return tmp_path / "w.safetensors"


@pytest.fixture
def adopted(photos: Path, weights: Path, own_networks: ModuleType, tmp_path: Path, run_itta) -> Path:
    out = tmp_path / "mine"
    words = ("--weights", weights, "--data", photos, "--out", out, "--image-size", "16", "--json")
    printed = json.loads(run_itta("adopt", MODULE, *words))
    assert printed["blocks"] == ["2", "5", "11"]
    assert printed["classes"] == ["across", "down"]
    assert set(printed["accuracy"]) == {"dawn", "night", "noon"}
    return out


def test_the_directory_holds_weights_and_statistics(adopted: Path, weights: Path) -> None:
    torch.manual_seed(3)
    net = sequential_cnn(2).eval()
    model = itta.load(adopted, module=sequential_cnn(2))
    x = torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(model(x), net(x))
    assert model.style_bank.domains == ("dawn", "night", "noon")
    assert len(model.style_bank) == 36
    assert model.confusions["mean"].shape == (2, 2)
    assert model.about["trial"]["backbone"] == MODULE


@pytest.mark.slow
def test_stand_ins_come_along_unless_they_are_left_out(
    photos: Path, own_networks: ModuleType, tmp_path: Path, run_itta
) -> None:
    """The folder has 36 images, 4 fewer than stand-ins need."""
    more = tmp_path / "more"
    shutil.copytree(photos, more)
    shutil.copytree(photos / "noon", more / "evening")
    for words, wanted in (((), True), (("--no-stand-ins",), False)):
        out = tmp_path / f"model {wanted}"
        run_itta("adopt", MODULE, "--data", more, "--out", out, "--image-size", "16", *words)
        assert (itta.load(out, module=sequential_cnn(2)).stand_ins is not None) == wanted
    printed = json.loads(run_itta("estimate", tmp_path / "model True", more / "noon", "--module", MODULE, "--json"))
    assert "combined" in json.dumps(printed)


@pytest.mark.slow
@pytest.mark.parametrize("data", ["my photos", "emoji"])
def test_the_next_command_works_as_it_stands(
    data: str, photos: Path, own_networks: ModuleType, tmp_path: Path, run_itta, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(photos, "my photos")
    classes = ("--classes", *load_dataset(data, image_size=16).classes) if data == "emoji" else ()
    own_networks.make_model = lambda: sequential_cnn(12 if classes else 2)  # type: ignore[attr-defined]
    words = ("--data", data, "--out", "my model", "--image-size", "16", *classes)
    (line,) = (w for w in run_itta("adopt", MODULE, *words).splitlines() if w.startswith("next "))
    assert main([*shlex.split(line)[2:], "--adapter", "source"]) == 0


@pytest.mark.slow
def test_the_other_verbs_take_it(adopted: Path, photos: Path, tmp_path: Path, run_itta, capsys) -> None:
    own = ("--module", MODULE)
    words = ("adapt", adopted, photos, "--domain", "night", "--json")
    assert main([str(w) for w in words]) == 2
    assert "--module package.module:Name" in capsys.readouterr().err
    found = json.loads(run_itta(*words, *own, "--out", tmp_path / "results"))
    assert found["adapter"] == "guarded itta+"
    assert (tmp_path / "results" / "page.html").is_file()
    assert (tmp_path / "results" / "records.jsonl").is_file()
    rows = run_itta("predict", adopted, photos / "night", *own, "--adapter", "t3a").splitlines()
    assert len(rows) == 13
    assert main([str(w) for w in ("tune", adopted, *own, "--adapter", "t3a", "--json")]) == 0
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if "adopted network, which itta cannot train again" in line]
    assert len(lines) == 1
    tuned = json.loads(out)
    assert set(tuned["plain"]) == {"dawn", "night", "noon"}
    assert json.loads(run_itta("profile", adopted, *own, "--batch", "2", "--repeats", "1", "--json"))
    run_itta("cam", adopted, photos, *own, "--domain", "night", "--out", tmp_path / "cam.png")
    assert (tmp_path / "cam.png").is_file()
    written = run_itta("export", adopted, *own, "--torch", tmp_path / "m.pt2")
    assert "largest difference" in written


def test_classes_in_another_order(photos: Path, own_networks: ModuleType, tmp_path: Path, run_itta) -> None:
    """The accuracy of a network whose logits are swapped is the same once its classes are named."""
    torch.manual_seed(0)
    net = sequential_cnn(2).eval()
    swapped = sequential_cnn(2).eval()
    swapped.load_state_dict(net.state_dict())
    for name in ("weight", "bias"):
        getattr(swapped[-1], name).data = getattr(net[-1], name).data.flip(0)
    own_networks.net, own_networks.swapped = net, swapped
    words = ("--data", photos, "--image-size", "16", "--json")
    first = json.loads(run_itta("adopt", "own_networks:net", "--out", tmp_path / "a", *words))
    named = ("--classes", "down", "across")
    second = json.loads(run_itta("adopt", "own_networks:swapped", "--out", tmp_path / "b", *words, *named))
    assert first["accuracy"] == second["accuracy"]
    tuned = [
        json.loads(run_itta("tune", tmp_path / m, "--module", f"own_networks:{name}", "--adapter", "source", "--json"))
        for m, name in (("a", "net"), ("b", "swapped"))
    ]
    assert tuned[0]["plain"] == tuned[1]["plain"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["own_networks:wrong"], "gives 3: expected a torch.nn.Module"),
        (["own_networks:missing"], "cannot import the module 'own_networks:missing'"),
        (["nowhere:make"], "cannot import the module"),
        ([MODULE, "--weights", "no.safetensors"], "there is no weights file"),
        ([MODULE, "--classes", "up", "down"], "the data have the class 'across'"),
        ([MODULE, "--classes", "across", "down", "up"], "gives 2 logits, and 3 classes were named"),
        ([MODULE, "--mean", "0.5", "0.5", "0.5"], "mean and std go together"),
        ([MODULE, "--blocks", "99"], "unknown submodule '99'"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], message: str, photos: Path, own_networks: ModuleType, tmp_path: Path, capsys
) -> None:
    out = tmp_path / "out"
    assert main(["adopt", *words, "--data", str(photos), "--image-size", "16", "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_weights_of_another_network_and_a_directory_in_use(
    adopted: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file(nn.Linear(2, 2).state_dict(), tmp_path / "other.safetensors")
    words = ["adopt", MODULE, "--data", str(photos), "--image-size", "16", "--out"]
    assert main([*words, str(tmp_path / "new"), "--weights", str(tmp_path / "other.safetensors")]) == 2
    assert "does not fit Sequential" in capsys.readouterr().err
    assert main([*words, str(adopted)]) == 2
    assert "holds a model: choose another --out" in capsys.readouterr().err
    assert main([*words, str(photos)]) == 2
    assert "is not an empty directory" in capsys.readouterr().err
