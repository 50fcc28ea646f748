"""itta train: what it prints, and how it takes bad data and flags."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from itta.algorithms import ALGORITHMS
from itta.cli import main
from itta.nn import BACKBONES

DOMAINS = ("dawn", "noon", "night")
TINY = ("--backbone", "small_cnn", "--weights", "none", "--image-size", "16", "--steps", "2")


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-60])


def small_domain(root: Path) -> None:
    for path in (root / "dawn").rglob("[2-9].png"):
        path.unlink()


HARMS: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "no folder": (shutil.rmtree, ["photos", "emoji"]),
    "empty folder": (lambda p: [shutil.rmtree(d) for d in p.iterdir()], ["no domain folders", "domain/class/image"]),
    "empty domain": (lambda p: (p / "dusk").mkdir(), ["'dusk'"]),
    "missing class": (lambda p: shutil.rmtree(p / "dawn/down"), ["'dawn'", "'down'", "--allow-missing-classes"]),
    "torn image": (lambda p: [tear(f) for f in (p / "dawn").rglob("*.png")], ["dawn", ".png", "remove it"]),
    "text": (
        lambda p: [f.write_text("hello") for f in (p / "noon").rglob("*.png")],
        ["noon", ".png", "damaged or not"],
    ),
    "torn target": (lambda p: tear(p / "night/down/0.png"), ["night/down/0.png"]),
    "vast": (lambda p: Image.new("1", (20_000, 20_000)).save(p / "night/down/0.png"), ["night/down/0.png", "20000 x"]),
    "small domain": (small_domain, ["'dawn'", "4 images", "at least 5"]),
}


@pytest.mark.parametrize("name", HARMS)
def test_bad_data_is_told_in_one_line(name, photos, tmp_path, fails):
    harm, told = HARMS[name]
    harm(photos)
    said = fails("train", photos, "--target", "night", "--out", tmp_path / "run", *TINY)
    for word in told:
        assert word in said


def test_missing_classes_are_accepted_on_demand(photos, tmp_path):
    shutil.rmtree(photos / "dawn" / "down")
    args = ["train", str(photos), "--target", "night", "--out", str(tmp_path / "run"), *TINY, "--json"]
    assert main([*args, "--allow-missing-classes"]) == 0


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--algorithm", "magic"], list(ALGORITHMS)),
        (["--algorithm", "no.module:Class"], ["no.module:Class", "package.module:Class"]),
        (["--backbone", "resnet19"], [*BACKBONES, "Did you mean 'resnet18'"]),
        (["--target", "evening"], list(DOMAINS)),
        (["--source", "evening"], list(DOMAINS)),
        (["--source", "night"], ["night", "both"]),
        (["--target", *DOMAINS], ["no domain is left"]),
        (["--set", "colour=red"], ["'colour'", "lr", "batch_size"]),
        (["--set", "lr=abc"], ["lr", "float", "'abc'"]),
        (["--set", "lr"], ["name=value", "'lr'"]),
        (["--set", "batch_size=0"], ["got 0", "raise batch_size"]),
        (["--set", "batch_size=2.5"], ["batch_size", "2.5"]),
        (["--set", "align_blocks=some"], ["align_blocks", "all"]),
        (["--steps", "0"], ["--steps", "at least 1"]),
        (["--eval-every", "0"], ["--eval-every"]),
        (["--image-size", "0"], ["--image-size"]),
        (["--weights", "nowhere.pth"], ["nowhere.pth"]),
        (["--source", "dawn", "--set", "batch_size=1"], ["at least 2"]),
    ],
)
def test_bad_training_flags_are_told_in_one_line(flags, told, drawn, tmp_path, fails, tree):
    before = tree(drawn)
    said = fails("train", drawn, "--target", "night", *TINY, "--out", tmp_path / "run", *flags)
    for word in told:
        assert word in said
    assert tree(drawn) == before
    assert not (tmp_path / "run" / "model.json").exists()


@pytest.mark.parametrize("flags", [["--steps", "many"], ["--colour"], []])
def test_what_is_no_command_ends_with_status_2(flags, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["train", *flags])
    assert stopped.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_training_prints_a_table_and_the_next_command(drawn, tmp_path, capsys):
    args = ["train", str(drawn), "--target", "night", "--out", str(tmp_path / "run"), *TINY, "--algorithm", "erm"]
    assert main(args) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    for domain, role in (("dawn", "source"), ("noon", "source"), ("night", "target")):
        assert any(domain in line and role in line for line in printed.out.splitlines())
    next_command = f"itta adapt {tmp_path / 'run'} {drawn} --domain night"
    assert next_command in printed.out
    assert main(next_command.split()[1:] + ["--set", "objective=plain"]) == 0


@pytest.mark.parametrize(("flags", "lr"), [((), 1e-3), (("--regime", "small"), 1e-3), (("--regime", "large"), 5e-5)])
def test_whose_hyper_parameters(flags, lr, drawn, tmp_path, capsys):
    """Images of 16 pixels are small ones."""
    args = ["train", str(drawn), "--target", "night", "--out", str(tmp_path / "run"), *TINY, "--algorithm", "erm"]
    capsys.readouterr()
    assert main([*args, *flags, "--json", "--set", "batch_size=4"]) == 0
    assert json.loads(capsys.readouterr().out)["hparams"]["lr"] == lr
