"""itta adapt: what it compares and writes, and how it takes mistakes."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from itta import records
from itta.adapters import ADAPTERS
from itta.cli import main
from itta.hparams import fields


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--adapter", "magic"], list(ADAPTERS)),
        (["--adapter", "itta", "--set", "colour=red"], [f.name for f in fields(ADAPTERS["itta"].Hparams)]),
        (["--adapter", "itta", "--set", "blocks=layer9"], ["'layer9'", "Choices"]),
        (["--adapter", "itta", "--set", "lr=abc"], ["lr", "'abc'"]),
        (["--adapter", "itta", "--set", "steps=0"], ["steps"]),
        (["--batch-size", "0"], ["--batch-size"]),
        (["--domain", "evening"], ["evening"]),
    ],
)
def test_bad_adaptation_flags_are_told_in_one_line(flags, told, models, drawn, tmp_path, fails, tree):
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
    said = fails("adapt", models["erm"], drawn / "night", "--adapter", "itta")
    assert "--algorithm itta" in said
    assert "objective=plain" in said
    assert (
        main(
            [
                "adapt",
                str(models["erm"]),
                str(drawn / "night"),
                "--adapter",
                "itta",
                "--set",
                "objective=plain",
                "--json",
            ]
        )
        == 0
    )


@pytest.mark.parametrize("where", ["folder", "domain"])
@pytest.mark.slow
def test_adapting_compares_and_writes(where, models, drawn, tmp_path, capsys):
    target = [str(drawn / "night")] if where == "folder" else [str(drawn), "--domain", "night"]
    command = [
        "adapt",
        str(models["itta"]),
        *target,
        "--adapter",
        "itta",
        "--batch-size",
        "5",
        "--json",
        "--out",
        str(tmp_path),
    ]
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


@pytest.mark.slow
def test_a_guarded_adapter_says_what_it_took_back(models, drawn, tmp_path, capsys):
    """A ruinous learning rate: the guard steps in, and result and record tell how often."""
    ruinous = ["--set", "lr=10", "--batch-size", "4", "--json", "--out", str(tmp_path)]
    assert main(["adapt", str(models["itta"]), str(drawn / "night"), "--adapter", "itta", "--guard", *ruinous]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["adapter"] == "guarded itta"
    assert sum(found["settings"]["interventions"].values()) > 0
    record = list(records.read(tmp_path / "records.jsonl"))[-1]
    assert record.adapter == "guarded itta"
    assert (
        main(["predict", str(models["itta"]), str(drawn / "night"), "--adapter", "itta", "--guard", "--set", "lr=10"])
        == 0
    )
    assert capsys.readouterr().out.count("\n") > 2


@pytest.mark.slow
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


@pytest.mark.slow
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
        command = [
            "adapt",
            str(models["itta"]),
            str(drawn / "night"),
            "--adapter",
            "itta",
            "--set",
            "lr=0.1",
            "--out",
            str(out),
        ]
        assert main([*command, "--batch-size", "4", "--json"]) == 0
        rows = list(csv.DictReader((out / "predictions.csv").open(newline="")))
        result = json.loads(capsys.readouterr().out)
        results.append((result, [(r["image"], r["before"], r["after"]) for r in rows], [r["label"] for r in rows]))
    (right, predicted, labels), (wrong, predicted_again, turned_labels) = results
    assert predicted == predicted_again
    assert all(a != b for a, b in zip(labels, turned_labels))
    assert wrong["accuracy"] == pytest.approx(1 - right["accuracy"])
    assert wrong["changed"] == right["changed"]
