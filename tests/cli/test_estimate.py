"""itta estimate and itta check, and estimates in the other verbs."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from itta.cli import main
from itta.cli.estimate import estimate_lines
from itta.estimators import Estimate, Estimated
from itta.metrics.stratified import Share
from itta.records import read

pytestmark = pytest.mark.slow

TINTS = {"dawn": (255, 160, 90), "noon": (230, 230, 230), "night": (70, 90, 160)}
TINY = ("--backbone", "small_cnn", "--weights", "none", "--image-size", "16", "--steps", "4", "--algorithm", "erm")


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """root/domain/class/image, with enough images to hold some out for stand-ins."""
    root, rng = tmp_path_factory.mktemp("sites"), np.random.default_rng(0)
    for domain, tint in TINTS.items():
        for axis, label in enumerate(("across", "down")):
            (root / domain / label).mkdir(parents=True)
            stripes = np.indices((16, 16))[axis] // 3 % 2
            for i in range(60):
                pixels = stripes[..., None] * np.array(tint) * rng.uniform(0.3, 1, (16, 16, 1))
                Image.fromarray(pixels.astype(np.uint8)).save(root / domain / label / f"{i}.png")
    return root


@pytest.fixture(scope="module")
def trained_model(sites: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("models") / "erm"
    words = ["train", str(sites), "--target", "night", *TINY, "--out", str(out), "--json", "--no-page"]
    assert main([*words, "--set", "batch_size=8", "lr=0.01"]) == 0
    return out


@pytest.fixture
def unlabelled(sites: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "unlabelled"
    folder.mkdir()
    for file in sorted((sites / "night").rglob("*.png")):
        (folder / f"{file.parent.name}-{file.name}").write_bytes(file.read_bytes())
    return folder


def test_estimate_on_a_labelled_target_shows_the_truth_beside_it(trained_model: Path, sites: Path, run_itta) -> None:
    found = json.loads(run_itta("estimate", trained_model, sites, "--domain", "night", "--json"))
    combined = found["estimate"]["combined"]
    for row in ("before", "after"):
        assert 0 <= combined[row]["low"] <= combined[row]["value"] <= combined[row]["high"] <= 1
    assert 0 <= combined["helps"] <= 1
    assert found["estimate"]["images"] == 120
    assert set(found["accuracy"]) == {"source", "guarded itta+"}
    assert set(found["estimate"]["single"]) == {"confidence", "difference", "atc", "agreement", "nuclear_norm"}
    printed = run_itta("estimate", trained_model, sites, "--domain", "night", "--adapter", "t3a")
    assert any(
        words in printed for words in ("t3a helps with a probability of", "t3a changes no answer", "No estimate")
    )


def test_adapt_and_predict_print_the_estimate(trained_model: Path, unlabelled: Path, capsys) -> None:
    assert main(["adapt", str(trained_model), str(unlabelled)]) == 0
    printed = capsys.readouterr().out
    assert "Estimated without labels" in printed
    assert main(["predict", str(trained_model), str(unlabelled)]) == 0
    printed = capsys.readouterr()
    assert "itta check decides with a few labels" in printed.err or "No estimate" in printed.err
    assert len(printed.out.splitlines()) == 121  # rows only


def test_records_and_the_page_hold_the_estimate(trained_model: Path, sites: Path, tmp_path: Path, run_itta) -> None:
    out = tmp_path / "out"
    run_itta("adapt", trained_model, sites, "--domain", "night", "--out", out)
    before, after = read(out / "records.jsonl")
    assert before.estimate["low"] <= before.estimate["accuracy"] <= before.estimate["high"]
    assert set(after.estimate) == {"accuracy", "low", "high"}
    page = (out / "page.html").read_text()
    assert "estimate, low" in page
    assert "nine times in ten" in page
    table = run_itta("report", out, trained_model, "--estimates")
    assert "Estimate against truth" in table
    assert "2 estimates: mean error" in table


def test_a_model_without_stand_ins_says_so(trained_model: Path, unlabelled: Path, tmp_path: Path, run_itta) -> None:
    import itta
    from itta.store.model import read_description, save_model

    model, described = itta.load(trained_model), read_description(trained_model)
    assert model.stand_ins is not None
    model.stand_ins = None
    save_model(tmp_path / "old", model, described.backbone, described.about)
    printed = run_itta("estimate", tmp_path / "old", unlabelled)
    assert "the model has no stand-ins" in printed
    assert "source, by confidence" in printed


@pytest.mark.parametrize(
    ("images", "expected"),
    [(3, "No estimate with an interval: 3 images are too few"), (60, "60 images"), (1, "1 images are too few")],
)
def test_few_images_and_one_class(
    images: int, expected: str, trained_model: Path, sites: Path, tmp_path: Path, run_itta
) -> None:
    for file in sorted((sites / "night" / "down").iterdir())[:images]:
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert expected in " ".join(run_itta("estimate", trained_model, tmp_path).split())


def test_the_lines_for_no_change_and_for_equal_answers() -> None:
    share = Share(0.5, 0.4, 0.6)
    sure = Estimate(share, share, Share(0.0, 0.0, 0.0), 0.5, 0.5)
    lines = estimate_lines(Estimated(40, 0, 0.95, sure), "itta+")
    assert lines[0] == "itta+ changes no answer here, so it neither helps nor hurts."
    assert lines[1].startswith("95 % of the images get the same answer.")
    assert len(estimate_lines(Estimated(40, 0, 0.5, sure), "source")) == 1


def test_stand_ins_can_be_left_out(sites: Path, tmp_path: Path) -> None:
    import itta

    words = ["train", str(sites), "--target", "night", *TINY, "--out", str(tmp_path / "run"), "--json", "--no-page"]
    assert main([*words, "--no-stand-ins", "--set", "batch_size=8"]) == 0
    assert itta.load(tmp_path / "run").stand_ins is None


def test_check_from_the_page_to_the_verdict(
    trained_model: Path, unlabelled: Path, tmp_path: Path, run_itta, fails
) -> None:
    out = tmp_path / "check"
    assert "first run itta check" in fails("check", trained_model, unlabelled, "--out", out, "--labels", out / "x.csv")
    words = ("check", trained_model, unlabelled, "--out", out, "--adapter", "t3a")
    printed = run_itta(*words, "--budget", "20")
    assert "To label: 20 images" in printed
    page = (out / "label.html").read_text()
    assert page.count("data:image/") >= 20
    assert "http" not in page.split("<body>")[1]
    plan = json.loads((out / "plan.json").read_text())
    with open(out / "labels.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["plan", "number", "image", "label"])
        for s in plan["sample"]:
            writer.writerow([plan["id"], s["number"], s["image"], Path(s["image"]).name.split("-")[0]])
    verdict = run_itta(*words, "--labels", out / "labels.csv")
    assert "20 of 20 planned labels" in " ".join(verdict.split())
    setting = re.search(r"--set (frequencies=\S+)", " ".join(verdict.split()))
    assert setting is not None
    run_itta("predict", trained_model, unlabelled, "--out", tmp_path / "told.csv", "--set", setting[1])
    checked = json.loads(run_itta(*words, "--labels", out / "labels.csv", "--json"))
    assert setting[1].count(":") == sum(n > 0 for n in checked["counted"].values())
    assert checked["labels"] == 20
    assert checked["verdict"]["decision"] in ("helps", "hurts", "undecided", "equal")
    assert checked["before"]["low"] <= checked["before"]["value"] <= checked["before"]["high"]
