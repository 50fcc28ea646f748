"""The benchmarks that chose the recipe and measure damaged images run, resume, and print what is in their records."""

import csv
from pathlib import Path

import pytest

from benchmarks import corruption_grid, corruption_tables, recipe_selection
from benchmarks.command import write_rows
from benchmarks.corruption_grid import Row as Damaged
from benchmarks.recipe_selection import Candidate, Row, between_seeds, table
from itta.errors import InputError
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
def test_damaged_images_are_measured_on_both_grounds(tmp_path, monkeypatch):
    monkeypatch.setitem(corruption_grid.RECIPES, "quick", Recipe(TrainSettings(**TINY), 1e-3, 2))
    monkeypatch.setattr(corruption_grid, "STRENGTHS", (1.0,))
    adapters, kinds = ("source", "t3a"), ("noise", "blur")
    options = corruption_grid.Options(tmp_path / "out", tmp_path, ("emoji",), adapters, corruptions=kinds, images=20)
    corruption_grid.main(options)
    rows = (tmp_path / "corruption_grid.csv").read_text()
    assert len(rows.splitlines()) == 1 + 2 * 2 * (1 + len(kinds))
    kept = tmp_path / "out" / "emoji-live-0.jsonl"
    kept.write_text("".join(kept.read_text().splitlines(keepends=True)[:-3]))  # as if it had been killed
    (tmp_path / "out" / "other-live-0.jsonl").write_text(kept.read_text().splitlines(keepends=True)[0])
    corruption_grid.main(options)
    again = (tmp_path / "corruption_grid.csv").read_text()
    assert again.splitlines()[:-1] == rows.splitlines()  # and the row of another command


def test_the_grid_has_a_dozen_usual_corruptions():
    assert len(corruption_grid.DAMAGES) == 12
    with pytest.raises(InputError, match="unknown corruption 'fog'"):
        corruption_grid.main(corruption_grid.Options(corruptions=("fog",)))


def made_up_grid():
    """Two kinds of damage; TENT gains on live batch normalisation and fails on frozen one."""
    gains = {"source": 0.0, "t3a": 1.0, "tent": 0.0}
    return [
        Damaged("emoji", bn, 0, kind, strength, name, 80 - 40 * strength + gains[name] + more)
        for bn, tent in (("frozen", -30.0), ("live", 10.0))
        for kind, strength in (("none", 0.0), *((k, s) for k in ("noise", "blur") for s in (0.5, 1.0)))
        for name in gains
        for more in [(tent if name == "tent" else 0.0) + (0.5 if kind == "blur" and name != "source" else 0.0)]
    ]


def test_the_page_of_the_corruptions_follows_their_rows(tmp_path, capsys):
    write_rows(tmp_path / "corruption_grid.csv", made_up_grid(), Damaged._fields)
    page = tmp_path / "page.md"
    page.write_text((RECORDS.parent / "corruptions.md").read_text())
    options = corruption_tables.Options(tmp_path, page, tmp_path)
    corruption_tables.main(options)
    first, text = page.read_text(), capsys.readouterr().out
    assert text.strip() in first
    live = text[text.index("## EmojiStyles, live") :]
    (line,) = (line for line in live.splitlines() if line.startswith("| TENT"))
    assert [cell.strip() for cell in line.split("|")[2:-1]] == \
        ["90.0", "70.2", "50.2", "60.2", "+10.2 (+7.1 … +13.4)", "noise +10.0"]  # fmt: skip
    assert "\n\nTENT gains most, +10.2 points on average." in live
    assert "- On every kind of damage TENT loses." in text[: text.index("## EmojiStyles, live")]
    assert (tmp_path / "corruptions.png").stat().st_size > 10_000
    corruption_tables.main(options)
    assert page.read_text() == first
    with pytest.raises(InputError, match="corruption_grid writes it"):
        corruption_tables.main(corruption_tables.Options(tmp_path / "nowhere"))
