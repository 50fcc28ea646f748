"""The commands on data known by name, on manifests and with or without the cache of decoded images."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from itta.cli import main
from itta.data.published import PUBLISHED

TINY = ("--backbone", "small_cnn", "--weights", "none", "--image-size", "16", "--steps", "2", "--json")


def draw(path: Path, axis: int, rng: np.random.Generator) -> None:
    stripes = np.indices((20, 20))[axis] // 3 % 2 * rng.integers(50, 256, (20, 20))
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(stripes.astype(np.uint8)).convert("RGB").save(path)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A VLCS of stripes, as itta data get would leave it, and a manifest of it."""
    root, rng = tmp_path_factory.mktemp("datasets"), np.random.default_rng(0)
    rows = ["domain,class,file"]
    for domain in PUBLISHED["VLCS"].domains:
        for i, label in enumerate(PUBLISHED["VLCS"].classes):
            for n in range(3):
                file = f"VLCS/{domain}/{label}/{n}.png"
                draw(root / file, i % 2, rng)
                rows.append(f"{domain},{label},{file}")
    (root / "list.csv").write_text("\n".join(rows) + "\n")
    return root


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ITTA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run(*args: object) -> int:
    return main([str(arg) for arg in args])


def train(data: object, out: Path, *flags: object) -> int:
    return run("train", data, "--target", "SUN09", "--out", out, *TINY, *flags, "--set", "batch_size=4")


@pytest.fixture(scope="module")
def model(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("models") / "vlcs"
    assert train("VLCS", out, "--data-root", root) == 0
    return out


@pytest.mark.slow
def test_a_name_a_path_and_a_manifest_are_the_same_data(root, tmp_path, capsys, cache, monkeypatch) -> None:
    monkeypatch.setenv("ITTA_DATA", str(root))
    sources = ("Caltech101", "LabelMe", "VOC2007")
    records = {}
    for name, data in (("name", "VLCS"), ("path", root / "VLCS"), ("manifest", root / "list.csv")):
        # the run's seed depends on what the data are called, so compare what does not: domains and their order
        assert train(data, tmp_path / name) == 0
        records[name] = json.loads(capsys.readouterr().out)
    for record in records.values():
        assert tuple(record["trial"]["train_domains"]) == sources
    assert records["name"]["trial"]["dataset"] == "VLCS"  # no path of this machine
    models = [json.loads((tmp_path / name / "model.json").read_text()) for name in records]
    assert models[0]["classes"] == models[1]["classes"] == models[2]["classes"]


@pytest.mark.slow
def test_the_cache_changes_no_weight(root, tmp_path, cache) -> None:
    for name, flags in (("with", ()), ("again", ()), ("without", ("--no-cache",))):
        assert train(root / "VLCS", tmp_path / name, *flags) == 0
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("with", "again", "without")]
    assert weights[0] == weights[1] == weights[2]


def test_without_the_cache_nothing_is_written(root, tmp_path, cache) -> None:
    assert train(root / "VLCS", tmp_path / "run", "--no-cache") == 0
    assert not cache.exists()


def test_a_cache_that_cannot_be_is_a_warning_in_one_line(root, tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("ITTA_CACHE", str(tmp_path / "file"))
    assert train(root / "VLCS", tmp_path / "run") == 0
    told = capsys.readouterr().err.splitlines()
    assert told
    assert all(line.startswith("itta: warning: decoded images cannot be kept") for line in told)


@pytest.mark.parametrize("cached", [True, False])
def test_adapt_finds_the_target_by_name_path_and_manifest(root, model, capsys, cached) -> None:
    flags = ("--domain", "SUN09", "--json", *(() if cached else ("--no-cache",)))
    results = []
    for data in (("VLCS", "--data-root", root), (root / "VLCS",), (root / "list.csv",)):
        assert run("adapt", model, *data, *flags) == 0
        results.append(json.loads(capsys.readouterr().out))
    assert [r["images"] for r in results] == [15, 15, 15]
    assert [r["target"] for r in results] == ["SUN09"] * 3
    assert results[0]["accuracy"] == results[1]["accuracy"]


def test_predict_takes_a_manifest(root, model, capsys) -> None:
    assert run("predict", model, root / "list.csv", "--adapter", "source") == 0
    assert len(capsys.readouterr().out.splitlines()) == 61


def test_tune_needs_to_know_where_a_name_lies(root, model, capsys) -> None:
    assert run("tune", model, "--adapter", "source") == 2
    assert "--data-root" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["RotatedMNIST", "ColoredMNIST"])
def test_mnist_is_trained_on_and_adapted_to(name, tmp_path, capsys) -> None:
    raw, rng = tmp_path / "MNIST" / "raw", np.random.default_rng(0)
    raw.mkdir(parents=True)
    for part in ("train", "t10k"):
        for kind, shape, high in (("images-idx3-ubyte", (60, 28, 28), 256), ("labels-idx1-ubyte", (60,), 10)):
            head = bytes((0, 0, 8, len(shape))) + b"".join(n.to_bytes(4, "big") for n in shape)
            (raw / f"{part}-{kind}").write_bytes(head + rng.integers(0, high, shape, dtype=np.uint8).tobytes())
    target = PUBLISHED[name].domains[-1]
    flags = (f"--target={target}", "--data-root", tmp_path, "--out", tmp_path / "run", *TINY[:-1], "--seed", "3")
    assert run("train", name, *flags, "--set", "batch_size=4") == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("next "))
    assert run(*shlex.split(line)[2:], "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["target"], result["images"]) == (target, 120 // len(PUBLISHED[name].domains))
    assert run("data", "check", tmp_path / "MNIST", "--name", name, "--json") == 2
    assert "120 images, 70,000 published" in capsys.readouterr().out


def test_data_list_tells_all_that_is_known(capsys) -> None:
    assert run("data", "list", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == list(PUBLISHED)
    assert found["PACS"]["class_counts"]["sketch"]["house"] == 80
    assert found["DomainNet"]["sources"][-1]["file"] == "domain_net_duplicates.txt"
    assert run("data", "list") == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in PUBLISHED)
    assert run("list", "datasets", "--json") == 0
    printed = capsys.readouterr().out
    assert all(f"itta data get {name}" in printed for name in PUBLISHED)
