"""Streams from the command line: how classes and domains arrive, and that each image comes once, rightly named."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from itta import records
from itta.cli import main
from itta.data.dataset import JoinedImages
from itta.data.folder_images import FolderImages

CLASSES, DOMAINS = ("across", "down"), ("dawn", "noon", "night")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for domain in DOMAINS:
        for axis, label in enumerate(CLASSES):
            (root / domain / label).mkdir(parents=True)
            for i in range(6):
                pixels = (np.indices((16, 16))[axis] // 3 % 2)[..., None] * rng.integers(60, 255, 3)
                Image.fromarray(pixels.astype(np.uint8)).save(root / domain / label / f"{i}.png")
    return root


@pytest.fixture(scope="module")
def model(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("model") / "run"
    tiny = ["--backbone", "small_cnn", "--weights", "none", "--image-size", "16", "--steps", "2"]
    assert main(["train", str(photos), "--source", "dawn", *tiny, "--set", "batch_size=4", "--out", str(out)]) == 0
    return out


def arrival(model: Path, photos: Path, out: Path, *flags: str) -> list[dict[str, str]]:
    """The rows of predictions.csv, which are in the stream's order."""
    assert (
        main(
            [
                "adapt",
                str(model),
                str(photos),
                "--adapter",
                "itta",
                *flags,
                "--batch-size",
                "4",
                "--json",
                "--out",
                str(out),
            ]
        )
        == 0
    )
    return list(csv.DictReader((out / "predictions.csv").open(newline="")))


def blocks(values: Sequence[str]) -> int:
    """How many runs of equal values there are."""
    return 1 + sum(a != b for a, b in zip(values, values[1:]))


@pytest.mark.slow
def test_one_class_after_another(model: Path, photos: Path, tmp_path: Path) -> None:
    rows = arrival(model, photos, tmp_path / "s", "--domain", "night", "--order", "sorted")
    assert len({row["image"] for row in rows}) == len(rows) == 12
    assert blocks([row["label"] for row in rows]) == 2
    assert all(row["label"] in row["image"] for row in rows)
    mixed = arrival(model, photos, tmp_path / "i", "--domain", "night")
    assert blocks([row["label"] for row in mixed]) > 2


@pytest.mark.slow
@pytest.mark.parametrize(("domains", "runs"), [("in_turn", 2), ("recurring", 6), ("mixed", None)])
def test_several_domains(
    domains: str, runs: int | None, model: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    rows = arrival(model, photos, tmp_path, "--domain", "noon", "night", "--domains", domains)
    result = json.loads(capsys.readouterr().out)
    came_from = [row["image"].split("/")[0] for row in rows]
    assert len({row["image"] for row in rows}) == len(rows) == 24
    assert blocks(came_from) == runs if runs else blocks(came_from) > 6
    assert result["target"] == "noon + night"
    record = list(records.read(tmp_path / "records.jsonl"))[-1]
    for domain in ("noon", "night"):
        right = [row["after"] == row["label"] for row in rows if row["image"].startswith(f"{domain}/")]
        assert record.accuracy[domain]["all"] == pytest.approx(np.mean(right))
    assert record.stream == {
        "order": "iid", "domains": domains, "concentration": 0.1, "batch_size": 4, "seed": 0,
    }  # fmt: skip
    assert record.needs["changes"] == "added blocks Θ"


def test_without_labels_nothing_arrives_by_class(
    model: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for file in (photos / "night" / "down").iterdir():
        (flat / file.name).write_bytes(file.read_bytes())
    assert main(["adapt", str(model), str(flat), "--order", "sorted"]) == 2
    assert "has no labels, so its images cannot arrive by class: leave --order at iid" in capsys.readouterr().err


def test_joined_images_are_those_of_their_domains(photos: Path) -> None:
    parts = {d: FolderImages(sorted((photos / d).rglob("*.png")), np.repeat([0, 1], 6), 16) for d in DOMAINS[:2]}
    joined = JoinedImages(parts)
    assert len(joined) == 24
    assert joined.labels.tolist() == [0] * 6 + [1] * 6 + [0] * 6 + [1] * 6
    read = joined.read([13, 0, 23, 12, 5])
    expected = [parts["noon"].read([1]), parts["dawn"].read([0]), parts["noon"].read([11]), parts["noon"].read([0])]
    assert torch.equal(read, torch.cat([*expected, parts["dawn"].read([5])]))
    assert joined.names[12].startswith("noon/")
