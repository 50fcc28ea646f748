"""Settings chosen on the source domains: trained without each in turn, stored with the model, blind to the target."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from itta.adapters import adapt
from itta.adapters.itta import ITTA
from itta.adapters.itta_plus import ITTAPlus
from itta.cli import main
from itta.data.folder_images import FolderImages
from itta.data.target import open_target
from itta.run.evaluate import evaluate
from itta.run.tune import best_candidate, fitting_candidates
from itta.store.adapter_choice import Candidate, read_choice
from itta.store.model import load, read_description


@pytest.fixture
def own(model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model, tmp_path / "model"))


@pytest.mark.slow
def test_tuning_leaves_each_source_out_and_stores_the_choice(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert read_choice(own) is None
    assert main(["tune", str(own), "--batch-size", "4", "--seeds", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    trial = read_description(own).trial
    assert list(found["plain"]) == list(trial.train_domains) == ["dawn", "noon"]
    for domain in trial.train_domains:
        part = read_description(own / "tune" / domain).trial
        assert part.test_domains == (domain,)
        assert domain not in part.train_domains
        assert part == replace(trial, train_domains=part.train_domains, test_domains=part.test_domains)
    assert len(found["gains"]) == len(ITTAPlus.candidates) + len(ITTA.candidates)
    assert all(set(gains) == {"dawn", "noon"} for gains in found["gains"].values())
    assert read_choice(own) == Candidate(**found["chosen"])
    assert json.loads((own / "adapter.json").read_text()) == found

    before = {p: p.stat().st_mtime_ns for p in (own / "tune").rglob("model.json")}
    assert main(["tune", str(own), "--batch-size", "4", "--seeds", "2"]) == 0
    assert "chosen" in capsys.readouterr().out
    assert {p: p.stat().st_mtime_ns for p in before} == before  # trained once
    assert json.loads((own / "adapter.json").read_text()) == found


@pytest.mark.slow
def test_the_scores_are_those_of_the_stand_ins(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", str(own), "--batch-size", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    trial = read_description(own).trial
    stand_in = load(own / "tune" / "noon")
    images = open_target(trial.dataset, read_description(own).expected, "noon").images
    settings = ITTA.candidates[2]
    for name, expected in (("source", found["plain"]["noon"]), ("itta", None)):
        got = evaluate(adapt(stand_in, name, **(settings if name == "itta" else {})), images, np.arange(12), 4, 0)
        if expected is None:
            expected = found["plain"]["noon"] + found["gains"][str(Candidate("itta", settings))]["noon"]
        assert got.accuracy == pytest.approx(expected, abs=1e-12)


def test_the_best_on_average_or_none() -> None:
    a, b = Candidate("itta", {"lr": 1e-3}), Candidate("tent", {})
    assert best_candidate([a, b], {str(a): {"x": 0.3, "y": -0.1}, str(b): {"x": 0.0, "y": 0.1}}) == a
    assert best_candidate([a, b], {str(a): {"x": -0.3, "y": 0.1}, str(b): {"x": 0.0, "y": 0.0}}) == Candidate(
        "source", {}
    )
    assert str(a) == "itta lr=0.001"


def test_adapt_and_predict_use_the_choice(own: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = {"chosen": {"adapter": "itta", "settings": {"lr": 0.25, "per": "channel"}}}
    (own / "adapter.json").write_text(json.dumps(chosen))

    def settings(*flags: str) -> dict[str, object]:
        assert main(["adapt", str(own), str(photos / "night"), "--json", *flags]) == 0
        found = json.loads(capsys.readouterr().out)
        return {"adapter": found["adapter"], "lr": found["settings"].get("lr"), "per": found["settings"].get("per")}

    assert settings() == {"adapter": "itta", "lr": 0.25, "per": "channel"}
    assert settings("--set", "lr=0.5") == {"adapter": "itta", "lr": 0.5, "per": "channel"}
    assert settings("--adapter", "itta") == {"adapter": "itta", "lr": 1e-4, "per": "pixel"}
    assert settings("--adapter", "source")["adapter"] == "source"
    (own / "adapter.json").write_text("{")
    assert main(["predict", str(own), str(photos / "night")]) == 2
    assert "adapter.json is damaged" in capsys.readouterr().err


def test_one_source_domain_cannot_be_left_out(
    train: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path / "one", "--source", "dawn") == 0
    capsys.readouterr()
    assert main(["tune", str(tmp_path / "one")]) == 2
    assert "trained on one domain, 'dawn'" in capsys.readouterr().err


def test_adapters_that_do_not_fit_are_refused_before_training(
    train: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model without f_w; by default it is tuned with the adapters that it can have."""
    out = tmp_path / "erm"
    assert train(out, "--algorithm", "erm") == 0
    capsys.readouterr()
    assert main(["tune", str(out), "--adapter", "t3a", "itta"]) == 2
    assert "has no learned loss f_w" in capsys.readouterr().err
    assert not (out / "tune").exists()
    assert {c.adapter for c in fitting_candidates(load(out), ())} == {"itta+"}


def test_permuting_the_targets_labels_changes_nothing_but_the_score(model: Path, photos: Path) -> None:
    target = open_target(str(photos / "night"), read_description(model).expected, None)
    labels = target.images.labels
    permuted = FolderImages([Path(n) for n in target.images.names], labels[::-1].copy(), 16)
    outcomes = [
        evaluate(adapt(load(model), "itta", lr=1e-2, guard=guard), images, target.indices, 4, 0)
        for guard in (False, True)
        for images in (target.images, permuted)
    ]
    for a, b in (outcomes[:2], outcomes[2:]):
        assert (a.predictions == b.predictions).all()
        assert (a.confidence == b.confidence).all()
        assert (a.labels != b.labels).any()


@pytest.mark.parametrize("verb", ["adapt", "predict", "export"])
def test_the_choice_not_to_adapt_is_said_in_words(
    verb: str, own: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own / "adapter.json").write_text(json.dumps({"chosen": {"adapter": "source", "settings": {}}}))
    night, program = str(photos / "night"), str(tmp_path / "m.pt2")
    words = {"export": ["--adapt-on", night, "--torch", program]}.get(verb, [night])
    assert main([verb, str(own), *words]) == 0
    printed = capsys.readouterr()
    told = " ".join(printed.err.split())  # rich wraps the line
    assert "itta tune found no adapter that helps" in told
    assert "To adapt it all the same, name an --adapter." in told
    if verb == "adapt":
        assert sum("source" in line for line in printed.out.partition("└")[0].splitlines()) == 1  # one row of results
