"""Models, run directories and records of version 0.1 keep working. The archive was written by that version."""

import json
import shutil
import tarfile
from pathlib import Path

import pytest
import torch

import itta
from itta import records
from itta.cli import main
from itta.run.status import read_state
from itta.store.adapter_choice import read_choice
from itta.store.model import read_description
from itta.sweep.plan import read_sweep
from itta.trial import Trial


@pytest.fixture
def old(tmp_path: Path) -> Path:
    with tarfile.open(Path(__file__).with_name("version_0_1.tar.xz")) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_a_model_loads_and_answers_as_it_did(old: Path) -> None:
    model = itta.load(old / "run")
    x = (torch.arange(2 * 3 * 16 * 16) * 7919 % 97 / 97.0).view(2, 3, 16, 16)
    with torch.no_grad():
        answers = model(x)
    assert not torch.equal(answers[0], answers[1])
    assert torch.allclose(answers, torch.tensor(json.loads((old / "logits.json").read_text())), atol=1e-6)
    adapter = itta.adapt(model, "itta+")
    assert torch.isfinite(adapter(x)).all()
    choice = read_choice(old / "run")
    assert choice is not None
    assert read_description(old / "run").trial.dataset == "photos"


def test_records_keep_their_keys(old: Path, run_itta) -> None:
    found = list(records.read(old / "run" / "records.jsonl"))
    assert [r.step for r in found] == [2, 4]
    (folder,) = (p for p in (old / "sweep").iterdir() if p.is_dir())
    (trial,) = {r.trial.key: r.trial for r in records.read(folder / "records.jsonl")}.values()
    assert trial.key == folder.name  # the key is the name of the trial's folder in its sweep
    assert (trial.regime, trial.fingerprint) == ("small", "")
    assert read_state(folder).word == "done"
    assert read_sweep(old / "sweep").algorithms == ("erm",)
    assert "night" in run_itta("report", old / "sweep")


@pytest.mark.slow
def test_a_run_goes_on_in_its_own_directory(old: Path, photos: Path, monkeypatch, run_itta, capsys) -> None:
    """Its trial names the data by the path as it was typed; the same command still means the same trial."""
    shutil.copytree(photos, old / "photos")
    (old / "run" / "model.json").unlink()  # as if it had been interrupted before the end
    before = json.loads((old / "run" / "trial.json").read_text())
    monkeypatch.chdir(old)
    words = (
        "train", "./photos/", "--target", "night", "--backbone", "small_cnn", "--weights", "none", "--image-size", "16",
        "--steps", "4", "--eval-every", "2", "--out", "run", "--set", "batch_size=4", "--regime", "large", "--json",
    )  # fmt: skip
    assert main([*words]) == 2
    assert "goes on with --recipe none" in capsys.readouterr().err
    printed = run_itta(*words, "--recipe", "none")
    assert Trial.from_json(json.loads(printed)["trial"]).key == Trial.from_json(before).key
    assert json.loads((old / "run" / "trial.json").read_text()) == before


def test_a_sweep_over_a_folder_says_what_to_do(old: Path, photos: Path, monkeypatch, capsys) -> None:
    shutil.copytree(photos, old / "photos")
    monkeypatch.chdir(old)
    command = ["sweep", "photos", "--algorithms", "erm", "--backbone", "small_cnn", "--weights", "none"]
    assert main([*command, "--image-size", "16", "--steps", "2", "--out", "sweep"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "earlier version" in line
    assert "choose another --out" in line
