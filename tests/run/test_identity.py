"""One way to open the data of a trial: every verb sees the images that training saw, or those it left out."""

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import itta
from itta.cli import main
from itta.data import load_dataset, open_data
from itta.data.target import open_target
from itta.errors import InputError
from itta.nn import make_backbone
from itta.nn.weights import digest_of
from itta.run import job as module
from itta.run import workbench
from itta.run.directory import refuse_another
from itta.run.job import Job, perform
from itta.settings import DataAccess
from itta.store.model import read_description
from itta.trial import Trial

TINY = ("--backbone", "small_cnn", "--weights", "none", "--image-size", "16", "--steps", "1", "--set", "batch_size=4")


def write_digits(root: Path, n: int = 240) -> Path:
    """The four files of MNIST, with few digits, below a data root."""
    rng = np.random.default_rng(0)
    (root / "MNIST" / "raw").mkdir(parents=True)
    for part, count in (("train", n), ("t10k", n // 4)):
        for kind, data in (
            ("images-idx3", rng.integers(0, 256, (count, 28, 28))),
            ("labels-idx1", rng.integers(0, 10, count)),
        ):
            head = bytes((0, 0, 8, data.ndim)) + b"".join(s.to_bytes(4, "big") for s in data.shape)
            path = root / "MNIST" / "raw" / f"{part}-{kind}-ubyte.gz"
            path.write_bytes(gzip.compress(head + data.astype(np.uint8).tobytes()))
    return root


def test_digits_are_dealt_by_the_seed_of_the_trial_everywhere(tmp_path: Path, monkeypatch) -> None:
    """A target's image is never one that was trained on."""
    access = DataAccess(data_root=write_digits(tmp_path / "data"))
    trial = Trial(
        "RotatedMNIST", "erm", ("0", "15", "30", "45", "60"), ("75",), trial_seed=1, steps=1, backbone="small_cnn",
        weights="none", image_size=16, overrides={"batch_size": 4},
    )  # fmt: skip
    seen, real = [], module.train_in

    def train(trial, out, dataset, *more):
        seen.append({domain: set(images.names) for domain, images in dataset.domains.items()})
        return real(trial, out, dataset, *more)

    monkeypatch.setattr(module, "train_in", train)
    perform(Job(trial, tmp_path / "run", access=access))
    (trained,) = seen
    target = open_target("RotatedMNIST", read_description(tmp_path / "run").expected, access=access)
    assert set(target.images.names) == trained["75"]
    assert not any(set(target.images.names) & trained[domain] for domain in trial.train_domains)
    other = open_data(replace(trial, trial_seed=0), access)
    assert set(other.domain("75").names) != trained["75"]  # another seed deals otherwise


@pytest.mark.slow
def test_the_library_deals_digits_as_the_command_line_does(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("ITTA_DATA", str(write_digits(tmp_path / "data")))
    seen, real = [], workbench.open_domains

    def open_domains(*given):
        seen.append(real(*given))
        return seen[-1]

    monkeypatch.setattr(workbench, "open_domains", open_domains)
    tiny = {"backbone": "small_cnn", "weights": "none", "image_size": 16, "steps": 1, "batch_size": 4}
    made = itta.train("RotatedMNIST", "erm", "75", tmp_path / "run", seed=1, **tiny)
    itta.evaluate(made.model, "RotatedMNIST", "75")
    itta.evaluate(itta.load(tmp_path / "run"), "RotatedMNIST", "75")
    target = open_target("RotatedMNIST", read_description(tmp_path / "run").expected)
    assert len(seen) == 3
    for dataset in seen:
        assert set(dataset.domain("75").names) == set(target.images.names)


@pytest.mark.slow
def test_the_library_holds_out_identities_on_demand(tmp_path: Path) -> None:
    tiny = {"backbone": "small_cnn", "weights": "none", "image_size": 16, "steps": 1, "batch_size": 4}
    made = itta.train("emoji", "erm", "noto-mono", tmp_path / "run", strict=True, seed=2, **tiny)
    found = itta.evaluate(made.model, "emoji", "noto-mono").outcomes["noto-mono"]
    target = open_target("emoji", read_description(tmp_path / "run").expected, "noto-mono")
    assert len(found.labels) == len(target.indices) < len(target.images)
    assert found.accuracy == made.accuracy["noto-mono"]["all"]


@pytest.fixture
def lacking(photos: Path, tmp_path: Path) -> Path:
    """Photos of which one domain lacks a class."""
    root = Path(shutil.copytree(photos, tmp_path / "lacking"))
    shutil.rmtree(root / "noon" / "down")
    return root


@pytest.mark.slow
def test_missing_classes_are_allowed_in_every_verb_that_trains(lacking: Path, tmp_path: Path, inline, capsys) -> None:
    train = ["train", str(lacking), "--target", "night", *TINY, "--no-page", "--json"]
    assert main([*train, "--out", str(tmp_path / "refused")]) == 2
    assert "--allow-missing-classes" in capsys.readouterr().err
    assert main([*train, "--out", str(tmp_path / "run"), "--allow-missing-classes"]) == 0
    assert main(["tune", str(tmp_path / "run"), "--batch-size", "4", "--json"]) == 0  # the model remembers
    sweep = ["sweep", str(lacking), "--algorithms", "erm", "--hparams-seeds", "1", "--trial-seeds", "1", *TINY]
    sweep += ["--targets", "night", "--slots", "1", "--json"]
    assert main([*sweep, "--out", str(tmp_path / "no")]) == 2
    assert "--allow-missing-classes" in capsys.readouterr().err
    assert main([*sweep, "--out", str(tmp_path / "sweep"), "--allow-missing-classes"]) == 0


def test_four_spellings_are_one_trial(photos: Path, tmp_path: Path, monkeypatch, run_itta) -> None:
    root = Path(shutil.copytree(photos, tmp_path / "photos"))
    monkeypatch.chdir(tmp_path)
    keys = set()
    for i, spelling in enumerate(["photos", "photos/", "./photos", root]):
        words = ["train", spelling, "--target", "night", *TINY, "--algorithm", "erm", "--no-page", "--json"]
        printed = json.loads(run_itta(*words, "--out", f"run-{i}"))
        keys.add(Trial.from_json(printed["trial"]).key)
    assert len(keys) == 1
    assert (tmp_path / "run-0" / "model.safetensors").read_bytes() == (
        tmp_path / "run-3" / "model.safetensors"
    ).read_bytes()
    cells = json.loads(run_itta("report", *(f"run-{i}" for i in range(4)), "--json"))["cells"]
    assert {c["n"] for c in cells if c["n"]} == {1}  # counted once


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    state = {name: value.contiguous() for name, value in make_backbone("small_cnn", "none", 16).state_dict().items()}
    save_file(state, tmp_path / "start.safetensors")
    return tmp_path / "start.safetensors"


def test_a_file_of_weights_is_named_by_its_content(weights: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(weights, tmp_path / "copy.safetensors"))
    here, there = (
        Trial("emoji", "erm", ("twemoji",), weights=str(path), weights_digest=digest_of(str(path)))
        for path in (weights, copy)
    )
    assert (here.key, here.seed) == (there.key, there.seed)
    assert here.differences(there) == []
    other = replace(there, weights_digest="0" * 20)
    assert other.key != here.key
    assert here.differences(other) == ["weights", "weights_digest"]
    assert digest_of("imagenet") == digest_of(str(tmp_path / "missing.pth")) == ""
    assert "weights_digest" not in Trial("emoji", "erm", ("twemoji",)).to_json()  # keys of earlier trials stay valid
    (tmp_path / "empty.pth").touch()
    assert digest_of(str(tmp_path / "empty.pth")) == ""  # read_weights says what is wrong with it


@pytest.mark.slow
def test_a_training_and_a_sweep_go_on_with_moved_weights(weights: Path, photos: Path, tmp_path: Path, capsys) -> None:
    tiny = ["--backbone", "small_cnn", "--image-size", "16", "--steps", "1", "--set", "batch_size=4", "--json"]
    run, out = tmp_path / "run", tmp_path / "sweep"
    words = ["train", str(photos), "--target", "night", "--out", str(run), "--no-page", *tiny, "--weights"]
    assert main([*words, str(weights)]) == 0
    moved = Path(shutil.move(weights, tmp_path / "moved.safetensors"))
    before = (run / "model.safetensors").stat().st_mtime_ns
    assert main([*words, str(moved)]) == 0
    assert (run / "model.safetensors").stat().st_mtime_ns == before  # nothing was trained again
    swept = ["sweep", str(photos), "--algorithms", "erm", "--targets", "night", "--slots", "1", *tiny, "--weights"]
    assert main([*swept, str(moved), "--out", str(out), "--yes"]) == 0
    back = Path(shutil.copy(moved, weights))
    capsys.readouterr()
    assert main([*swept, str(back), "--out", str(tmp_path / "other"), "--elsewhere", str(out), "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["done"] == 1
    other = make_backbone("small_cnn", "none", 16)
    save_file({name: value.contiguous() for name, value in other.state_dict().items()}, moved)
    assert main([*words, str(moved)]) == 2
    assert "holds another trial (it differs in weights)" in capsys.readouterr().err


@pytest.mark.slow
def test_a_training_of_an_earlier_version_goes_on_with_its_weights(weights: Path, photos: Path, tmp_path: Path) -> None:
    """It had no digest of the file, only its path."""
    trial = Trial(
        str(photos), "erm", ("dawn", "noon"), ("night",), steps=1, backbone="small_cnn", weights=str(weights),
        image_size=16, overrides={"batch_size": 4}, fingerprint=load_dataset(photos, image_size=16).fingerprint,
    )  # fmt: skip
    perform(Job(trial, tmp_path / "run"))
    now = replace(trial, weights_digest=digest_of(str(weights)))
    assert refuse_another(tmp_path / "run", now) == trial
    with pytest.raises(InputError, match="it differs in weights"):
        refuse_another(tmp_path / "run", replace(now, weights="imagenet", weights_digest=""))


def test_weights_that_cannot_be_read_are_told_in_one_line(weights: Path, monkeypatch) -> None:
    def refuse(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("itta.nn.weights.checksum", refuse)  # root may read every file
    with pytest.raises(InputError, match="cannot read weights from .*start.safetensors"):
        digest_of(str(weights))
