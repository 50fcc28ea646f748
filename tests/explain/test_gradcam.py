"""Maps on a target: which images, what is compared with what, what is written, and what is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from PIL import Image

import itta
from itta.adapters import adapt
from itta.cli import main
from itta.data.loaders import stream
from itta.data.target import Target, open_target
from itta.explain.gradcam import CamSettings, explain_target
from itta.explain.losses import LOSSES, MapRequest, NetworkState, batch_maps, draw_random_views
from itta.explain.map_similarity import OTHER
from itta.functional.heat_maps import Sign, enlarge, spearman
from itta.seeds import derive_seed
from itta.store.model import read_description


@pytest.fixture(scope="module")
def ttt(train: Callable[..., int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "ttt"
    assert train(out, "--algorithm", "ttt") == 0
    return out


@pytest.fixture
def target(model: Path, photos: Path) -> Target:
    return open_target(str(photos), read_description(model).expected, "night")


@pytest.fixture
def cam(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., dict]:
    def run(*args: object) -> dict:
        capsys.readouterr()
        assert main(["cam", *map(str, args), "--out", str(tmp_path / "cam.png"), "--json"]) == 0
        printed = capsys.readouterr()
        assert printed.err == ""
        return json.loads(printed.out)

    return run


@pytest.mark.slow
def test_the_command_draws_and_measures(model: Path, photos: Path, cam: Callable[..., dict], tmp_path: Path) -> None:
    before = {p.name: p.read_bytes() for p in model.iterdir()}
    found = cam(model, photos, "--domain", "night", "--images", 3, "--block", "block3")
    assert found["images"] == 12
    assert found["labels"] == "true"
    assert (found["block"], found["map"]) == ("block3", [8, 8])
    assert found["losses"] == ["main", "learned", "plain", "entropy"]
    assert list(found["similarity_to_main"]) == ["learned", "plain", "entropy", OTHER]
    for row in found["similarity_to_main"].values():
        assert -1 <= row["spearman"] <= 1
        assert 0 <= row["iou"] <= 1
        assert row["spearman_images"] == row["iou_images"] == 12
    assert len(found["shown"]) == 3
    with Image.open(tmp_path / "cam.png") as image:
        width, height = image.size
    assert 1.2 < width / height < 2.2  # five columns, three rows
    assert {p.name: p.read_bytes() for p in model.iterdir()} == before


@pytest.mark.slow
def test_without_json_there_is_a_table(model: Path, photos: Path, tmp_path: Path, capsys) -> None:
    assert main(["cam", str(model), str(photos / "night"), "--out", str(tmp_path / "a.png"), "--measure", "5"]) == 0
    printed = capsys.readouterr().out
    for word in ("night", "block4", "true labels", "5 images", "learned", "entropy", "a.png"):
        assert word in " ".join(printed.split())


def test_similarities_are_means_over_the_images(model: Path, target: Target) -> None:
    """Batches and all, against maps made image by image from the same draws."""
    settings = CamSettings(batch_size=5, seed=3)
    result, shown = explain_target(itta.load(model), target, settings)
    trained, generator = itta.load(model), torch.Generator().manual_seed(derive_seed(3, "cam"))
    found: dict[str, list[float]] = {"learned": [], "plain": [], "entropy": []}
    pictures = {}
    batches = list(stream(target.images, target.indices, 5, 3, least=2))
    assert [len(rows) for rows, _, _ in batches] == [5, 5, 2]
    for rows, x, y in batches:
        views = draw_random_views(trained, ("main", *found), len(x), generator)
        maps, _ = batch_maps(NetworkState(trained), x, y, MapRequest(("main", *found), "block4", views))
        for j, i in enumerate(rows):
            main_map = enlarge(maps["main"][j : j + 1].double(), 16)
            pictures[target.images.names[i]] = -main_map[0].numpy()
            for name, values in found.items():
                values.append(float(spearman(enlarge(maps[name][j : j + 1].double(), 16), main_map)))
    for name, values in found.items():
        assert result["similarity_to_main"][name]["spearman"] == pytest.approx(np.nanmean(values))
    for name, drawn_map in zip(shown.names, shown.heats["main"]):
        np.testing.assert_allclose(drawn_map, pictures[name])


def test_a_class_predicted_everywhere_has_the_map_of_its_loss(model: Path, target: Target) -> None:
    """The class that is predicted everywhere, explained by its loss, has the map of that loss."""
    trained = itta.load(model)
    trained.head.weight.data.mul_(0)
    trained.head.weight.data[0].fill_(1)
    unlabelled = Target("t", target.images, target.indices[:4], False)
    result, _ = explain_target(trained, unlabelled, CamSettings(("class:across", "main")))
    row = result["similarity_to_main"]["class:across"]
    assert row["spearman"] == pytest.approx(1, abs=1e-6)
    assert row["iou"] == pytest.approx(1)


@pytest.mark.parametrize("sign", ["lowers", "raises", "both"])
def test_the_side_that_is_drawn(sign: str, model: Path, target: Target) -> None:
    trained = itta.load(model)
    _, both = explain_target(trained, target, CamSettings(("main",), sign="both"))
    _, shown = explain_target(trained, target, CamSettings(("main",), sign=sign))
    expected = {"lowers": both.heats["main"].clip(min=0), "raises": (-both.heats["main"]).clip(min=0)}
    np.testing.assert_array_equal(shown.heats["main"], expected.get(sign, both.heats["main"]))


@pytest.mark.slow
def test_an_adapter_that_learns_nothing_changes_no_map(model: Path, photos: Path, cam: Callable[..., dict]) -> None:
    still = cam(model, photos / "night", "--adapter", "itta", "--set", "lr=0")
    rows = still["similarity_to_main"]
    assert rows["main after itta, with main before"]["spearman"] == pytest.approx(1)
    assert rows["learned, after itta"] == rows["learned"]
    moved = cam(model, photos / "night", "--adapter", "itta", "--set", "lr=0.03", "--batch-size", 4)
    assert moved["similarity_to_main"]["main after itta, with main before"]["spearman"] < 0.999
    assert moved["adapter"]["name"] == "itta"
    assert moved["adapter"]["settings"]["lr"] == 0.03


def test_the_network_has_gone_over_the_whole_target(model: Path, target: Target) -> None:
    """Also the first image's map is that of the end of the stream, whatever is measured."""
    trained = itta.load(model)
    adapter = adapt(trained, "itta", lr=0.03)
    settings = CamSettings(("main",), batch_size=4, measure=2, images=2)
    _, shown = explain_target(trained, target, settings, adapter)
    again = adapt(trained, "itta", lr=0.03)
    for _, x, _ in stream(target.images, target.indices, 4, 0):
        again(x)
    rows, x, y = next(stream(target.images, target.indices, 2, 0))
    network = NetworkState(again.network(), again.adapt_block)
    maps, _ = batch_maps(network, x, y, MapRequest(("main",), "block4"))
    expected = dict(zip((target.images.names[i] for i in rows), -enlarge(maps["main"].double(), 16)))
    for name, drawn_map in zip(shown.names, shown.heats["main, after itta"]):
        np.testing.assert_allclose(drawn_map, expected[name].detach().numpy())


@pytest.mark.slow
def test_a_model_with_a_rotation_head_offers_rotation(ttt: Path, photos: Path, cam: Callable[..., dict]) -> None:
    found = cam(ttt, photos / "night", "--adapter", "ttt", "--set", "per=batch", "views=4")
    assert found["losses"] == ["main", "plain", "entropy", "rotation"]
    assert "rotation, after ttt" in found["similarity_to_main"]


@pytest.mark.slow
def test_images_without_labels(model: Path, photos: Path, cam: Callable[..., dict], tmp_path: Path) -> None:
    files = sorted((photos / "night").rglob("*.png"))
    several = cam(model, files[0], files[7], photos / "noon" / "down")
    assert several["labels"] == "predicted"
    assert several["images"] == 8
    lone = cam(model, files[0])  # mixes with the style bank
    assert lone["images"] == 1
    assert OTHER not in lone["similarity_to_main"]
    assert lone["similarity_to_main"]["learned"]["spearman_se"] == 0


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--block", "block9"], ["'block9'", "block1, block2, block3, block4"]),
        (["--losses", "rotation"], ["no rotation head", "--algorithm ttt"]),
        (["--losses", "main", "sharpness"], ["'sharpness'", "main, learned, plain, entropy, class:NAME"]),
        (["--losses", "class:up"], ["'up'", "across, down"]),
        (["--hot", "1"], ["above 0 and below 1", "got 1"]),
        (["--sign", "down"], ["unknown sign 'down'", "lowers, raises, both"]),
        (["--images", "0"], ["--images"]),
        (["--measure", "0"], ["--measure"]),
        (["--set", "lr=1"], ["--adapter"]),
        (["--adapter", "magic"], ["'magic'", "itta"]),
        (["--adapter", "source"], ["source changes nothing in the network"]),
        (["--adapter", "lame"], ["lame changes nothing in the network"]),
        (["--adapter", "t3a"], ["t3a changes only the classifier"]),
        (["--adapter", "memo"], ["memo resets itself", "episodic=false"]),
        (["--domain", "dusk"], ["'dusk'"]),
    ],
)
def test_mistakes_are_told_in_one_line(flags, told, model, photos, tmp_path, capsys) -> None:
    domain = [] if "--domain" in flags else ["--domain", "night"]
    capsys.readouterr()
    assert main(["cam", str(model), str(photos), *domain, *flags, "--out", str(tmp_path / "cam.png")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("itta: error:")
    assert printed.err.count("\n") == 1
    for word in told:
        assert word in printed.err
    assert list(tmp_path.iterdir()) == []


def test_no_data_or_too_much_of_it(model, photos, tmp_path, capsys) -> None:
    for data, told in (([], "name a data set"), ([photos, photos, "--domain", "night"], "2 were named")):
        assert main(["cam", str(model), *map(str, data), "--out", str(tmp_path / "cam.png")]) == 2
        assert told in capsys.readouterr().err


def test_looking_changes_no_model(model: Path, target: Target) -> None:
    trained = itta.load(model)
    tensors = {k: v.clone() for k, v in trained.state_dict().items()}
    flags = {k: p.requires_grad for k, p in trained.named_parameters()}
    explain_target(trained, target, CamSettings(images=2), adapt(trained, "itta", lr=0.1))
    assert all(torch.equal(v, tensors[k]) for k, v in trained.state_dict().items())
    assert {k: p.requires_grad for k, p in trained.named_parameters()} == flags
    assert all(p.grad is None for p in trained.parameters())


def test_a_damaged_model(model: Path, photos: Path, tmp_path: Path, capsys) -> None:
    copy = Path(shutil.copytree(model, tmp_path / "model"))
    (copy / "model.json").unlink()
    assert main(["cam", str(copy), str(photos / "night")]) == 2
    assert "model.json" in capsys.readouterr().err


def test_the_help_names_every_loss_and_sign(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["cam", "--help"])
    words = capsys.readouterr().out.replace(",", " ").split()
    assert {*LOSSES, *get_args(Sign)} <= {*words}
