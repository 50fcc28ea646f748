"""itta train: what it prints, and how it takes bad data and flags."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

import itta
from itta.adapters.itta import PRESETS as ADAPTER_PRESETS
from itta.algorithms import ALGORITHMS
from itta.algorithms.itta import PRESETS
from itta.catalogue import catalogue
from itta.cli import VERBS, main
from itta.data.streams import CLASS_ORDERS, DOMAIN_ORDERS
from itta.nn import BACKBONES
from itta.recipes import RECIPES
from itta.sweep.engines import ENGINES
from tests.fixtures.toy import mark_slow

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
        lambda p: [f.write_text(f"hello {f}") for f in (p / "noon").rglob("*.png")],
        ["noon", ".png", "damaged or not"],
    ),
    "torn target": (lambda p: tear(p / "night/down/0.png"), ["night/down/0.png"]),
    "vast": (lambda p: Image.new("1", (20_000, 20_000)).save(p / "night/down/0.png"), ["night/down/0.png", "20000 x"]),
    "small domain": (small_domain, ["'dawn'", "4 images", "at least 5"]),
}


@pytest.mark.parametrize("name", mark_slow(HARMS, ("vast",)))
@pytest.mark.slow
def test_bad_data_is_told_in_one_line(name, photos, tmp_path, fails):
    harm, told = HARMS[name]
    harm(photos)
    said = fails("train", photos, "--target", "night", "--out", tmp_path / "run", *TINY)
    for word in told:
        assert word in said


@pytest.mark.slow
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


@pytest.mark.parametrize("mistake", [["--algorithm", ":x"], ["--set", "lr=nan"], ["--backbone", "resnet19"]])
def test_a_command_without_the_mistake_takes_the_same_directory(mistake, drawn, tmp_path, fails):
    words = ("train", drawn, "--target", "night", *TINY, "--out", tmp_path / "run", "--algorithm", "erm", "--json")
    assert "another trial" not in fails(*words, *mistake)
    assert main([str(w) for w in words]) == 0
    assert "holds another trial (it differs in steps)" in fails(*words, "--steps", "3")  # this one began


NO_COMMANDS: dict[str, tuple[list[str], str]] = {
    "a value of another type": (
        ["train", "d", "--out", "o", "--steps", "many"],
        "--steps INT cannot be 'many'. See itta",
    ),
    "an unknown flag": (
        ["train", "d", "--out", "o", "--taget", "x"],
        "--taget x; did you mean --target (in itta train)",
    ),
    "another verb's flag": (
        ["adapt", "m", "d", "--mean", "1"],
        "--mean 1; did you mean --mean (in itta adopt)? See itta",
    ),
    "nothing after the verb": (["train"], "itta train needs DATA and --out PATH. See itta train --help."),
    "no value": (["train", "d", "--out"], "Missing value for argument '--out'"),
    "an unknown choice": (
        ["train", "d", "--out", "o", "--bn", "x"],
        "'x' for argument '--bn'. Expected one of ('auto'",
    ),
    "an unknown action": (["data", "fetch"], "unknown: fetch; choices: list, get, check. See itta data --help."),
    "an unknown verb": (["trian"], "unknown command 'trian'. Did you mean 'train'?"),
    "no verb": ([], "name a command: demo, train"),
}


@pytest.mark.parametrize("name", NO_COMMANDS)
def test_a_mistake_in_a_command_is_one_line_that_names_the_verb(name, fails):
    words, told = NO_COMMANDS[name]
    assert told in fails(*words)


def test_a_mistake_in_a_command_is_one_line_on_a_screen_without_unicode():
    command = [sys.executable, "-m", "itta", "train", "photos", "--steps", "1.5", "--out", "x"]
    environment = os.environ | {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert (done.returncode, done.stderr) == (2, "itta: error: --steps INT cannot be '1.5'. See itta train --help.\n")


def test_training_prints_a_table_and_the_next_command(drawn, tmp_path, capsys):
    args = ["train", str(drawn), "--target", "night", "--out", str(tmp_path / "run"), *TINY, "--algorithm", "erm"]
    assert main(args) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    for domain, role in (("dawn", "source"), ("noon", "source"), ("night", "target")):
        assert any(domain in line and role in line for line in printed.out.splitlines())
    next_command = f"itta adapt {tmp_path / 'run'} {drawn} --domain night"
    assert next_command in printed.out
    assert main(next_command.split()[1:]) == 0  # as it stands


@pytest.mark.parametrize(("flags", "lr"), [((), 1e-3), (("--regime", "small"), 1e-3), (("--regime", "large"), 2e-4)])
def test_whose_hyper_parameters(flags, lr, drawn, tmp_path, capsys):
    """Images of 16 pixels are small ones, with DomainBed's learning rate; other images have the recipe's."""
    args = ["train", str(drawn), "--target", "night", "--out", str(tmp_path / "run"), *TINY, "--algorithm", "erm"]
    capsys.readouterr()
    assert main([*args, *flags, "--json", "--set", "batch_size=4"]) == 0
    assert json.loads(capsys.readouterr().out)["hparams"]["lr"] == lr


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--target", "night sky"),
        ("--algorithm", "itta"),
        ("--target", "night sky", "--algorithm", "tests.test_extending:SmoothERM"),
        ("--backbone", "itta.nn.small_cnn:SmallCNN"),
    ],
)
def test_the_next_command_works_as_it_stands(flags, drawn, tmp_path, capsys):
    """Without a target, with spaces in names, after any algorithm, with classes of the user's own."""
    root = Path(shutil.copytree(drawn, tmp_path / "my photos"))
    (root / "night").rename(root / "night sky")
    assert main(["train", str(root), "--out", str(tmp_path / "my run"), *TINY, "--no-page", *flags]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("next "))
    assert main(shlex.split(line)[2:]) == 0


@pytest.mark.slow
def test_train_and_report_name_one_accuracy_for_one_model(drawn, tmp_path, capsys, run_itta):
    printed = run_itta("train", drawn, "--target", "night", "--out", tmp_path / "run", *TINY, "--algorithm", "erm")
    cells = json.loads(run_itta("report", tmp_path / "run", "--json"))["cells"]
    (accuracy,) = (c["mean"] for c in cells if c["column"] == "night")
    (row,) = (line for line in printed.splitlines() if "target, split in" in line)
    assert f"{accuracy:.1f}" in row


def test_the_version(run_itta):
    assert run_itta("--version") == f"itta {itta.__version__}\n"


@pytest.mark.parametrize("verb", [*VERBS])
def test_help_speaks_plainly(verb, capsys):
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    text = capsys.readouterr().out
    assert "{None}" not in text
    assert "(default: True)" not in text
    assert "(default: False)" not in text
    assert "(default: )" not in text


@pytest.mark.parametrize(
    ("verb", "names"),
    [
        ("adapt", [*CLASS_ORDERS, *DOMAIN_ORDERS, *ADAPTER_PRESETS]),
        ("train", [*RECIPES, *PRESETS]),
        ("sweep", [*ENGINES, *RECIPES]),
        ("list", [*catalogue()]),
    ],
)
def test_the_help_names_every_choice_of_the_tables(verb, names, capsys):
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    words = set(re.findall(r"[\w-]+", capsys.readouterr().out))
    assert set(names) <= words


def test_the_help_of_the_command_names_the_version(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out
    assert "Version: --version" in printed
    assert printed.count("\n") < 60  # one screen: the examples are in the help of each verb
    assert "Example" not in printed


def test_an_interruption_names_the_verb(monkeypatch, capsys):
    def interrupted(*flags):
        raise KeyboardInterrupt

    monkeypatch.setattr("itta.catalogue.catalogue", interrupted)
    assert main(["list"]) == 130
    assert capsys.readouterr().err == "itta: list was interrupted.\n"
