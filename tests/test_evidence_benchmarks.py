"""The benchmarks that chose the recipe and measure damaged images run, resume, and print what is in their records."""

import csv
from pathlib import Path

import pytest

from benchmarks import corruption_grid, recipe_selection
from benchmarks.recipe_selection import Candidate, Row, between_seeds, table
from itta.recipes import QUICK, RECIPES, Recipe
from itta.settings import TrainSettings

TINY = {"steps": 1, "image_size": 16, "backbone": "small_cnn", "weights": "none"}
RECORDS = Path(__file__).parent.parent / "docs" / "results" / "records"


@pytest.mark.slow
def test_the_selection_trains_once_and_writes_all_rows(tmp_path, monkeypatch, capsys):
    tiny = Candidate(TINY, {"lr": 1e-3, "batch_size": 2})
    monkeypatch.setattr(
        recipe_selection, "CANDIDATES", {"start": tiny, "averaged": Candidate({**TINY, "average": 0.5})}
    )
    options = recipe_selection.Options(tmp_path / "runs", tmp_path, ("emoji",))
    recipe_selection.main(options)
    first = capsys.readouterr().out
    assert first.count(" s\n") == 8  # four pairs of domains, two candidates
    rows = (tmp_path / "recipe_selection.csv").read_text()
    assert len(rows.splitlines()) == 1 + 2 * 4 * 2
    recipe_selection.main(options)
    assert (tmp_path / "recipe_selection.csv").read_text() == rows
    assert capsys.readouterr().out == first[first.index("| data") :]


def test_the_table_compares_the_same_cases():
    rows = [
        Row(name, "PACS", "a+b", "c", seed, accuracy, 70.0)
        for name, accuracies in {"start": (50.0, 54.0), "new": (53.0, 53.0)}.items()
        for seed, accuracy in enumerate(accuracies)
    ]
    assert list(table(rows))[2:] == [
        "| PACS | start | 52.0 | +0.0 | 0 of 2 | 2.8 | 70.0 |",
        "| PACS | new | 53.0 | +1.0 | 1 of 2 | 0.0 | 70.0 |",
    ]
    assert between_seeds(rows[:1]) == "–"


def test_the_recipe_is_the_steadiest_candidate_in_the_records():
    with open(RECORDS / "recipe_selection.csv", newline="") as file:
        rows = [Row(r["candidate"], r["data"], r["sources"], r["target"], int(r["seed"]), float(r["accuracy"]), 0.0)
                for r in csv.DictReader(file)]  # fmt: skip
    spreads = {name: between_seeds([r for r in rows if r.candidate == name]) for name in recipe_selection.CANDIDATES}
    measured = {name: float(spread) for name, spread in spreads.items() if spread != "–"}
    best, quick = recipe_selection.CANDIDATES[min(measured, key=lambda name: measured[name])], RECIPES["quick"]
    assert best.training == {name: getattr(QUICK, name) for name in best.training}
    assert best.method == {"lr": quick.lr, "batch_size": quick.batch_size}


@pytest.mark.slow
def test_damaged_images_are_measured_on_both_grounds(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(corruption_grid.RECIPES, "quick", Recipe(TrainSettings(**TINY), 1e-3, 2))
    monkeypatch.setattr(corruption_grid, "STRENGTHS", (1.0,))
    options = corruption_grid.Options(tmp_path / "out", tmp_path, ("emoji",), ("source", "t3a"), images=20)
    corruption_grid.main(options)
    printed = capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "corruption_grid.csv").read_text().splitlines()))
    assert len(rows) == 2 * 2 * (1 + len(corruption_grid.CORRUPTIONS))
    assert "| live | t3a |" in printed
    assert "strength 1" in printed
    kept = tmp_path / "out" / "emoji-live-0.jsonl"
    kept.write_text("".join(kept.read_text().splitlines(keepends=True)[:-3]))  # as if it had been killed
    corruption_grid.main(options)
    assert capsys.readouterr().out == printed
    assert list(csv.DictReader((tmp_path / "corruption_grid.csv").read_text().splitlines())) == rows
