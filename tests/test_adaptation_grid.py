"""The grid of streams: every cell once, none twice, nothing lost by an interruption; and the long stream."""

import csv
import importlib
import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
DOMAINS = ("dawn", "noon", "night")


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.adaptation_grid")


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.adaptation_tables")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root, rng = tmp_path / "photos", np.random.default_rng(0)
    for domain in DOMAINS:
        for axis, label in enumerate(("across", "down")):
            (root / domain / label).mkdir(parents=True)
            for i in range(6):
                pixels = (np.indices((16, 16))[axis] // 3 % 2)[..., None] * rng.integers(60, 255, 3)
                Image.fromarray(pixels.astype(np.uint8)).save(root / domain / label / f"{i}.png")
    return root


@pytest.fixture
def options(grid: ModuleType, photos: Path, tmp_path: Path, inline: None) -> Any:
    return grid.Options(
        out=tmp_path / "grid", data=(str(photos),), seeds=1, images=8, fewer=8, steps=1, batch_size=4, image_size=16,
        backbone="small_cnn", weights="none", adapters=("itta+", "t3a", "tent", "lame"), set=("lame.neighbours=2",),
        slots=1,
    )  # fmt: skip


def rows_of(options: Any, name: str = "grid") -> list[dict[str, str]]:
    return list(csv.DictReader((options.out / f"{name}.csv").open(newline="")))


@pytest.mark.slow
def test_every_cell_once_and_an_interruption_loses_nothing(
    grid: ModuleType, options: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid.main(options)
    rows = rows_of(options)
    cells = [(r["target"], r["adapter"], r["order"], r["batch"]) for r in rows]
    assert len(cells) == len(set(cells)) == 3 * (3 * 9 + 1)
    whole = {(o, str(b)) for o in ("iid", "sorted", "dirichlet") for b in (1, 16, 64)}
    assert {(r["order"], r["batch"]) for r in rows if r["adapter"] == "t3a"} == whole
    assert {(r["order"], r["batch"]) for r in rows if r["adapter"] == "lame"} == {("iid", "32")}
    for r in rows:
        assert r["images"] == "8"
        if r["adapter"] == "tent":  # the small network has no batch normalisation
            assert r["accuracy"] == ""
            assert "adapts batch normalisation" in r["note"]
        else:
            assert float(r["accuracy"]) * 8 == round(float(r["accuracy"]) * 8)
    printed = Path(capsys.readouterr().out.strip())
    assert "### itta+: points gained over the trained model (worst cell" in printed.read_text()
    assert "### tent: points gained over the trained model (cannot run)" in printed.read_text()
    _, plainest = printed.read_text().split("### Random order")  # only what is in no table of its own
    assert re.findall(r"^\| (\S+)", plainest, re.MULTILINE) == ["method", "lame"]

    models = grid.models(options)
    first = models[0].rows
    lines = first.read_text().splitlines(keepends=True)
    first.write_text("".join(lines[:-1]) + lines[-1][:20])  # as a crash would leave it
    others = {m.rows: m.rows.read_bytes() for m in models[1:]}
    monkeypatch.setattr(grid, "ProcessPoolExecutor", lambda slots, mp_context: ThreadPoolExecutor(slots))  # faster
    grid.main(options)
    assert rows_of(options) == rows
    assert first.read_text().splitlines(keepends=True) == lines
    assert {path: path.read_bytes() for path in others} == others


@pytest.mark.slow
def test_more_images_or_other_settings_are_other_rows(grid: ModuleType, options: Any) -> None:
    asked = replace(options, adapters=("lame",))
    first, *_ = grid.models(asked)
    grid.run_local({"dawn": (first.trial, first.folder)}, 1)
    changed = (replace(asked, fewer=6), replace(asked, fewer=600), replace(asked, set=("lame.neighbours=1",)))
    for wanted in (asked, *changed, asked):
        grid.adapt_one(grid.models(wanted)[0])
    rows = grid.read(first.rows)
    found = [(r.images, r.settings) for r in rows]
    assert found == [(8, "neighbours=2"), (6, "neighbours=2"), (12, "neighbours=2"), (8, "neighbours=1")]
    for wanted, row in zip((asked, *changed), rows):
        assert grid.models(wanted)[0].done() == [row]  # what was not asked for is in no table


@pytest.mark.slow
def test_the_ablation_runs_every_variant(grid: ModuleType, options: Any) -> None:
    few = [m for m in grid.models(replace(options, ablation=True, fewer=4)) if m.trial.test_domains == ("night",)]
    (model,) = few
    grid.run_local({"night": (model.trial, model.folder)}, 1)
    grid.adapt_one(model)
    rows = grid.read(model.rows)
    assert [r.adapter for r in rows] == list(grid.variants())
    assert all(r.accuracy is not None for r in rows), [r.note for r in rows]
    assert len({r.before for r in rows}) == 1


def test_a_method_with_a_training_of_its_own_gets_a_model_of_its_own(grid: ModuleType, options: Any) -> None:
    models = grid.models(replace(options, adapters=("t3a", "ttt")))
    assert [(m.trial.algorithm, len(m.jobs)) for m in models] == 3 * [("itta", 9), ("ttt", 1)]
    assert len({m.folder for m in models} | {m.rows for m in models}) == 12


def test_guarded_methods_are_cells_of_their_own(grid: ModuleType, options: Any) -> None:
    (job,) = grid.jobs(replace(options, adapters=("lame",), guard=True))
    assert (job.label, job.adapter) == ("guarded lame", "lame")
    assert job.settings == {"neighbours": "2", "guard": True}


def test_gains_are_means_over_seeds(tables: ModuleType) -> None:
    def row(seed: int, before: float, accuracy: float | None) -> Any:
        return tables.Row("photos", "night", seed, "t3a", "iid", 16, 10, before, accuracy)

    assert tables.gain([row(0, 0.5, 0.7), row(1, 0.5, 0.4), row(2, 0.9, None)]) == pytest.approx(0.05)
    assert tables.gain([row(0, 0.5, None)]) is None
    table = tables.plainest_table([row(0, 0.5, 0.7), row(1, 0.5, 0.4)])
    assert table.rows == [["t3a", "+5.0", "+5.0"]]
    assert tables.seeds_table([row(0, 0.5, 0.7), row(1, 0.5, 0.4)]).rows == [["t3a", "+20.0, +20.0", "-10.0, -10.0"]]
    assert tables.seeds_table([]).rows == []


def test_a_training_of_its_own_is_shown_beside_the_gain(tables: ModuleType) -> None:
    def row(target: str, seed: int, adapter: str, before: float, accuracy: float) -> Any:
        return tables.Row("photos", target, seed, adapter, "iid", 32, 10, before, accuracy)

    own = [row("night", 0, "mt3", 0.3, 0.5), row("night", 1, "mt3", 0.4, 0.4), row("noon", 0, "mt3", 0.8, 0.75)]
    table = tables.own_training_table(own)
    assert table.rows == [["mt3", "35.0, +10.0", "80.0, -5.0", "57.5, +2.5"]]
    assert tables.plainest_table(own).rows == []
    assert tables.own_training_table([row("night", 0, "lame", 0.3, 0.5)]).rows == []


@pytest.mark.slow
def test_the_figure_shows_the_published_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    figure = importlib.import_module("benchmarks.adaptation_figure")
    published = ROOT / "docs" / "results" / "records" / "adaptation_grid.csv"
    gains = figure.gains_of(figure.read_csv(published))
    lines = [line for line in csv.DictReader(published.open(newline="")) if line["accuracy"]]
    assert set(gains) == {line["adapter"] for line in lines}
    for method, of_method in gains.items():
        own = [100 * (float(x["accuracy"]) - float(x["before"])) for x in lines if x["adapter"] == method]
        assert np.mean(figure.all_of(of_method)) == pytest.approx(np.mean(own))  # as many seeds for every cell
        assert len(figure.all_of(of_method)) == len(own) // 3
    with pytest.raises(SystemExit, match=r"no .*grid\.csv: python -m benchmarks\.adaptation_grid writes it"):
        figure.main(tmp_path / "grid.csv")
    figure.main(published, tmp_path / "new" / "grid.png")
    with Image.open(tmp_path / "new" / "grid.png") as picture:
        assert len(np.unique(np.asarray(picture.convert("L")))) > 20


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="memory is read from /proc")
def test_the_long_stream_is_answered_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    long_stream = importlib.import_module("benchmarks.long_stream")
    out = tmp_path / "stream.jsonl"
    options = long_stream.Options(batches=60, adapters=("tent",), slots=1, out=out, json=True)
    long_stream.main(options)
    first = json.loads(capsys.readouterr().out)
    long_stream.main(replace(options, adapters=("itta+", "tent")))
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["itta+", "tent"]
    assert found["tent"] == first["tent"]  # its processor time too: it has not run again
    assert len(out.read_text().splitlines()) == 2
    for of_adapter in found.values():
        assert of_adapter["answered"] == 1.0
        assert of_adapter["interventions"]["non-finite image"] > 0
        assert of_adapter["accuracy"] > of_adapter["source"] - 0.1
    long_stream.main(replace(options, json=False))
    assert "| tent" in capsys.readouterr().out
    assert not long_stream.Found(**first["tent"]).of(replace(options, batches=61))
