"""The command line: what it prints, what it writes, and how it takes mistakes."""

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from itta import records
from itta.adapters import ADAPTERS
from itta.algorithms import ALGORITHMS
from itta.cli import main
from itta.data.emoji import STYLES
from itta.hparams import fields
from itta.nn import BACKBONES

TINTS = {"dawn": (255, 160, 90), "noon": (230, 230, 230), "night": (70, 90, 160)}
TINY = ("--backbone", "small_cnn", "--weights", "none", "--image-size", "16", "--steps", "2")
VERBS = (
    "demo", "train", "adapt", "tune", "predict", "sweep", "sweep-status", "report", "records", "cam", "inspect",
    "export", "profile", "data", "list",
)  # fmt: skip


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> Path:
    """root/domain/class/image: stripes across or down in the tint of the domain."""
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for domain, tint in TINTS.items():
        for axis, label in enumerate(("across", "down")):
            (root / domain / label).mkdir(parents=True)
            stripes = np.indices((24, 24))[axis] // 3 % 2
            for i in range(6):
                pixels = stripes[..., None] * np.array(tint) * rng.uniform(0.3, 1, (24, 24, 1))
                Image.fromarray(pixels.astype(np.uint8)).save(root / domain / label / f"{i}.png")
    return root


@pytest.fixture
def photos(drawn, tmp_path) -> Path:
    """A copy for each test, which may harm it."""
    return Path(shutil.copytree(drawn, tmp_path / "photos"))


@pytest.fixture(scope="module")
def models(drawn, tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    for algorithm in ("itta", "erm"):
        out = ["--out", str(root / algorithm), "--algorithm", algorithm]
        assert main(["train", str(drawn), "--target", "night", *TINY, *out, "--json", "--set", "batch_size=4"]) == 0
    return {algorithm: root / algorithm for algorithm in ("itta", "erm")}


@pytest.fixture
def fails(capsys) -> Callable[..., str]:
    """Run a command that must end with status 2 and one line; gives the line."""

    def run(*args: object) -> str:
        capsys.readouterr()
        assert main([str(a) for a in args]) == 2
        printed = capsys.readouterr()
        assert printed.err.startswith("itta: error: ")
        assert printed.err.count("\n") == 1, printed.err
        assert printed.out == ""
        return str(printed.err)

    return run


def tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


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
    "text": (lambda p: [f.write_text("hello") for f in (p / "noon").rglob("*.png")], ["noon", ".png", "broken or not"]),
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
        (["--target", "evening"], list(TINTS)),
        (["--source", "evening"], list(TINTS)),
        (["--source", "night"], ["night", "both"]),
        (["--target", *TINTS], ["no domain is left"]),
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
def test_bad_training_flags_are_told_in_one_line(flags, told, drawn, tmp_path, fails):
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


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--adapter", "magic"], list(ADAPTERS)),
        (["--set", "colour=red"], [f.name for f in fields(ADAPTERS["itta"].Hparams)]),
        (["--set", "blocks=layer9"], ["'layer9'", "Choices"]),
        (["--set", "lr=abc"], ["lr", "'abc'"]),
        (["--set", "steps=0"], ["steps"]),
        (["--batch-size", "0"], ["--batch-size"]),
        (["--domain", "evening"], ["evening"]),
    ],
)
def test_bad_adaptation_flags_are_told_in_one_line(flags, told, models, drawn, tmp_path, fails):
    before = tree(models["itta"])
    domain = [] if "--domain" in flags else ["--domain", "night"]
    said = fails("adapt", models["itta"], drawn, *domain, *flags, "--out", tmp_path / "out")
    for word in told:
        assert word in said
    assert tree(models["itta"]) == before
    assert not (tmp_path / "out").exists()


def test_an_unknown_target_domain_lists_the_domains(models, drawn, fails):
    said = fails("adapt", models["itta"], drawn, "--domain", "dusk")
    assert "unknown domain 'dusk'" in said
    assert all(folder.name in said for folder in drawn.iterdir())


def test_a_class_the_model_does_not_know(models, photos, fails):
    (photos / "night" / "down").rename(photos / "night" / "round")
    said = fails("adapt", models["itta"], photos / "night")
    assert "'round'" in said
    assert "across, down" in said


def test_emoji_for_a_model_of_something_else(models, fails):
    assert "across, down" in fails("adapt", models["itta"], "emoji")


def test_a_model_without_a_learned_loss_names_the_cure(models, drawn, fails):
    said = fails("adapt", models["erm"], drawn / "night")
    assert "--algorithm itta" in said
    assert "objective=plain" in said
    assert main(["adapt", str(models["erm"]), str(drawn / "night"), "--set", "objective=plain", "--json"]) == 0


@pytest.mark.parametrize("where", ["folder", "domain"])
def test_adapting_compares_and_writes(where, models, drawn, tmp_path, capsys):
    target = [str(drawn / "night")] if where == "folder" else [str(drawn), "--domain", "night"]
    command = ["adapt", str(models["itta"]), *target, "--batch-size", "5", "--json", "--out", str(tmp_path)]
    capsys.readouterr()
    assert main(command) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    result = json.loads(printed.out)
    assert result["images"] == 12
    assert result["target"] == "night"
    assert {Path(f).name for f in result["files"]} >= {"predictions.csv", "records.jsonl", "stream.png", "story.json"}
    rows = list(csv.DictReader((tmp_path / "predictions.csv").open(newline="")))
    for column, key in (("before", "accuracy_before"), ("after", "accuracy")):
        assert np.mean([row[column] == row["label"] for row in rows]) == pytest.approx(result[key])
    found = list(records.read(tmp_path / "records.jsonl"))
    assert [r.adapter for r in found] == ["source", "itta"]
    assert found[1].accuracy["night"]["all"] == result["accuracy"]
    assert all(0 <= r.calibration["night"]["all"] <= 1 for r in found)
    assert all(r.logs["seconds_per_image"] > 0 for r in found)
    with Image.open(tmp_path / "stream.png") as image:
        image.load()


def test_a_guarded_adapter_says_what_it_took_back(models, drawn, tmp_path, capsys):
    """A ruinous learning rate: the guard steps in, and result and record tell how often."""
    ruinous = ["--set", "lr=10", "--batch-size", "4", "--json", "--out", str(tmp_path)]
    assert main(["adapt", str(models["itta"]), str(drawn / "night"), "--guard", *ruinous]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["adapter"] == "guarded itta"
    assert sum(found["settings"]["interventions"].values()) > 0
    record = list(records.read(tmp_path / "records.jsonl"))[-1]
    assert record.adapter == "guarded itta"
    assert main(["predict", str(models["itta"]), str(drawn / "night"), "--guard", "--set", "lr=10"]) == 0
    assert capsys.readouterr().out.count("\n") > 2


def test_adapting_without_labels_tells_only_what_changed(models, photos, tmp_path, capsys):
    flat = tmp_path / "flat"
    flat.mkdir()
    for i, path in enumerate(sorted((photos / "night").rglob("*.png"))):
        path.rename(flat / f"{i}.png")
    capsys.readouterr()
    assert main(["adapt", str(models["itta"]), str(flat), "--json", "--out", str(tmp_path / "out")]) == 0
    result = json.loads(capsys.readouterr().out)
    assert "changed" in result
    assert not {"accuracy", "accuracy_before"} & set(result)
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"page.html", "predictions.csv", "story.json"}
    assert main(["adapt", str(models["itta"]), str(flat)]) == 0
    assert "answers changed" in " ".join(capsys.readouterr().out.split())


def test_labels_are_used_for_the_score_only(models, drawn, monkeypatch, tmp_path, capsys):
    from itta.data import folder

    real, results = folder._labelled, []

    def turned(*args):
        images = real(*args)
        images.labels = 1 - images.labels
        return images

    for name, load in (("right", real), ("turned", turned)):
        monkeypatch.setattr(folder, "_labelled", load)
        capsys.readouterr()
        out = tmp_path / name
        command = ["adapt", str(models["itta"]), str(drawn / "night"), "--set", "lr=0.1", "--out", str(out)]
        assert main([*command, "--batch-size", "4", "--json"]) == 0
        rows = list(csv.DictReader((out / "predictions.csv").open(newline="")))
        result = json.loads(capsys.readouterr().out)
        results.append((result, [(r["image"], r["before"], r["after"]) for r in rows], [r["label"] for r in rows]))
    (right, predicted, labels), (wrong, predicted_again, turned_labels) = results
    assert predicted == predicted_again
    assert all(a != b for a, b in zip(labels, turned_labels))
    assert wrong["accuracy"] == pytest.approx(1 - right["accuracy"])
    assert wrong["changed"] == right["changed"]


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


@pytest.mark.parametrize(("flags", "lr"), [((), 5e-5), (("--regime", "small"), 1e-3), (("--regime", "auto"), 1e-3)])
def test_whose_hyper_parameters(flags, lr, drawn, tmp_path, capsys):
    """Images of 16 pixels are small ones."""
    args = ["train", str(drawn), "--target", "night", "--out", str(tmp_path / "run"), *TINY, "--algorithm", "erm"]
    capsys.readouterr()
    assert main([*args, *flags, "--json", "--set", "batch_size=4"]) == 0
    assert json.loads(capsys.readouterr().out)["hparams"]["lr"] == lr


def test_list_shows_every_registered_name(capsys):
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    for name in (*ALGORITHMS, *ADAPTERS, *BACKBONES, *STYLES, "emoji"):
        assert name in printed


def test_list_as_json_carries_the_hyper_parameters(capsys):
    assert main(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["algorithms"]) == set(ALGORITHMS)
    assert set(found["adapters"]) == set(ADAPTERS)
    assert set(BACKBONES) <= set(found["backbones"])
    for kind, registry in (("algorithms", ALGORITHMS), ("adapters", ADAPTERS)):
        for name, cls in registry.items():
            assert set(found[kind][name]["hparams"]) == {f.name for f in fields(cls.Hparams)}
    assert main(["list", "adapters", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"adapters"}


def test_list_as_json_tells_needs_ranges_and_what_is_a_methods_own(capsys):
    assert main(["list", "algorithms", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["algorithms"]
    for name, cls in ALGORITHMS.items():
        assert found[name]["about"] == cls.paper
        assert found[name]["needs"] == json.loads(json.dumps(asdict(cls.needs)))
    assert found["erm"]["hparams"]["lr"] == {
        "default": 5e-5,
        "searched": "10^U(-5, -3.5)",
        "about": "learning rate of Adam",
        "own": False,
        "regimes": {"small": {"default": 1e-3, "searched": "10^U(-4.5, -2.5)"}},
    }
    own = {name: {h for h, facts in entry["hparams"].items() if facts["own"]} for name, entry in found.items()}
    assert own["erm"] == set()
    assert own["irm"] == {"irm_lambda", "irm_penalty_anneal_iters"}
    assert own["arm"] == {"batch_size", "reference"}  # with a default of its own
    assert own["itta"] > own["consistency"]
    assert found["arm"]["hparams"]["batch_size"]["searched"] is None


@pytest.mark.parametrize("kind", ["algorithms", "adapters"])
def test_one_list_shows_needs_and_own_hyper_parameters(kind, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["list", kind, "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)[kind]
    assert main(["list", kind]) == 0
    printed = capsys.readouterr().out
    for entry in entries.values():
        assert entry["about"] in printed
        assert entry.get("needs_in_words", entry.get("predicts")) in printed
        for name, facts in entry["hparams"].items():
            if facts["own"]:
                assert any(f"- {name}=" in line and (facts["searched"] or "") in line for line in printed.splitlines())
    assert main(["list"]) == 0
    assert "one source domain" not in capsys.readouterr().out


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_helps_with_an_example(verb, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([verb, "--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    assert "Example" in printed
    assert f"itta {verb}" in printed


def test_the_module_is_the_command_and_its_status_is_that_of_the_shell(tmp_path):
    command = [sys.executable, "-m", "itta", "train", str(tmp_path / "nowhere"), "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("itta: error: ")
    assert done.stderr.count("\n") == 1


def test_a_reader_that_has_enough_is_no_mistake():
    command = f"{sys.executable} -m itta list --json | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert done.stdout.split() == ["0"]
