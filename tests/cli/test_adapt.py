"""itta adapt: what it compares and writes, and how it takes mistakes."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import itta.data.folder_images
import itta.run.compare
import itta.run.unfinished_stream
from itta import records
from itta.adapters import ADAPTERS
from itta.cli import main
from itta.data.folder_images import FolderImages
from itta.hparams import fields
from itta.store.tensors import save_tensors


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
    from itta.data import target

    real, results = target.load_target, []

    def turned(*args, **kwargs):
        images = real(*args, **kwargs)
        images.labels = 1 - images.labels
        return images

    for name, load in (("right", real), ("turned", turned)):
        monkeypatch.setattr(target, "load_target", load)
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


@pytest.mark.slow
def test_an_interrupted_command_goes_on_and_ends_as_if_it_had_not_stopped(
    models, drawn, tmp_path, monkeypatch, capsys
) -> None:
    """With an adapter that learns. The images before the interruption are not read again."""
    monkeypatch.setattr(itta.run.unfinished_stream, "EVERY", 0.0)
    monkeypatch.setattr(itta.run.unfinished_stream, "SHARE", 0)
    command = ["adapt", str(models["itta"]), str(drawn), "--domain", "night", "--adapter", "itta", "--batch-size", "4"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main([*command, "--out", str(whole), "--no-page"]) == 0
    answer, read, calls, rows = itta.run.compare.answer, FolderImages.read, [], []

    def stops(*args):
        calls.append(1)
        if len(calls) == 6:  # in the third batch, after the model as trained
            raise KeyboardInterrupt
        return answer(*args)

    with monkeypatch.context() as patch:
        patch.setattr(itta.run.compare, "answer", stops)
        assert main([*command, "--out", str(parts), "--no-page"]) != 0
    assert [file.name for file in parts.iterdir()] == ["adapt.unfinished"]
    monkeypatch.setattr(FolderImages, "read", lambda self, indices: rows.extend(indices) or read(self, indices))
    assert main([*command, "--out", str(parts), "--no-page"]) == 0
    names = ("predictions.csv", "records.jsonl")
    assert {file.name for file in parts.glob("[!.]*")} == {*names, "stream.png"}
    assert (parts / names[0]).read_text() == (whole / names[0]).read_text()
    one, other = (records.read(folder / names[1]) for folder in (whole, parts))
    assert [r.accuracy for r in one] == [r.accuracy for r in other]
    assert [r.calibration for r in one] == [r.calibration for r in other]
    images = len((whole / names[0]).read_text().splitlines()) - 1
    assert len(rows) == images - 8


def test_a_broken_state_is_told_and_another_command_begins_anew(models, drawn, tmp_path, fails) -> None:
    command = ["adapt", models["itta"], drawn / "night", "--no-page", "--out", tmp_path]
    (tmp_path / "adapt.unfinished").write_bytes(b"broken")
    said = fails(*command)
    assert f"cannot go on from {tmp_path / 'adapt.unfinished'}" in said
    assert "Delete it to begin anew" in said
    tensors = {"predictions": torch.zeros(2, 4), "confidence": torch.zeros(2, 4)}
    save_tensors(tmp_path / "other.unfinished", tensors, {"command": "other", "done": 4, "seconds": [1.0, 1.0]})
    (tmp_path / "other.unfinished").replace(tmp_path / "adapt.unfinished")
    assert main(list(map(str, command))) == 0
    assert not (tmp_path / "adapt.unfinished").exists()


@pytest.mark.parametrize("flags", [["--order", "sorted"], []])
def test_a_target_too_large_to_keep_is_decoded_as_it_is_read(flags, models, drawn, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ITTA_CACHE", str(tmp_path / "cache"))
    answers = []
    for limit in (0, 2**33):
        monkeypatch.setattr(itta.data.folder_images, "ON_DISK", limit)
        monkeypatch.setattr(itta.data.folder_images, "IN_MEMORY", limit)
        out = tmp_path / f"{limit}"
        assert main(["adapt", str(models["itta"]), str(drawn / "night"), *flags, "--no-page", "--out", str(out)]) == 0
        assert (tmp_path / "cache").exists() == (limit > 0)
        answers.append((out / "predictions.csv").read_text())
    assert answers[0] == answers[1]
