"""Figures are written, whole, and not told apart by colour alone."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from itta.metrics.significance import rank_rows
from itta.records import Record
from itta.records.collection import Collection
from itta.report.cells import TableOptions
from itta.report.comparison import measurements
from itta.report.filled_layout import FilledLayout, fill_layout
from itta.report.layouts import everything_recorded
from itta.report.plot_style import series_style
from itta.report.plots import indistinct_groups, plot_critical_difference, plot_domains
from itta.report.table_figures import costs_and_accuracies, draw_figures, search_trials

Made = Callable[..., list[Record]]


def check(path: Path) -> None:
    with Image.open(path) as image:
        image.load()
        assert min(image.size) > 150
        pixels = np.asarray(image.convert("L"))
    assert pixels[0, 0] == 255  # white paper
    assert pixels.std() > 5


@pytest.fixture
def searches(made: Made) -> FilledLayout:
    """Three made-up methods, two targets, two seeds, three hyper-parameter seeds."""
    rng = np.random.default_rng(0)
    runs = []
    for i, name in enumerate(("erm", "irm", "itta")):
        for target in ("photo", "sketch"):
            for seed in (0, 1):
                for h in (0, 1, 2):
                    values = {"accuracy": 0.5 + i / 10 + rng.uniform() / 20, "validation": 0.8 + rng.uniform() / 10}
                    hparams = {"lr": 10.0 ** (-3 - h), "batch_size": 8 * (h + 1), "augment": True}
                    adapted = {"itta": values["accuracy"] + 0.02} if name == "itta" else {}
                    runs += made(name, target, seed, hparams_seed=h, hparams=hparams, adapted=adapted, **values)
    cost = {"source": 0.01, "itta": 0.05}
    runs = [replace(r, logs={"seconds_per_image": cost[r.adapter]}) for r in runs]
    return fill_layout(everything_recorded(runs), Collection(runs), TableOptions(split="in"))


@pytest.mark.slow
def test_a_report_draws_what_it_has_data_for(tmp_path: Path, searches: FilledLayout) -> None:
    drawn = draw_figures(tmp_path / "figures", searches, rank_rows(measurements(searches)))
    assert [p.name for p in drawn] == [
        "domains.png",
        "ranks.png",
        "sensitivity-erm.png",
        "sensitivity-irm.png",
        "sensitivity-itta.png",
        "cost-seconds_per_image.png",
    ]
    for path in drawn:
        check(path)


def test_sensitivity_shows_every_trial_of_the_search(searches: FilledLayout) -> None:
    runs = search_trials(searches)
    assert runs.keys() == {"erm", "irm", "itta"}  # of models as trained
    assert runs["erm"].keys() == {"lr", "batch_size"}  # numbers that differ
    assert len(runs["erm"]["lr"]) == 2 * 2 * 3
    assert {value for value, _, _ in runs["erm"]["lr"]} == {1e-3, 1e-4, 1e-5}


def test_costs_are_those_of_the_measurements(searches: FilledLayout) -> None:
    points = costs_and_accuracies(searches, "seconds_per_image")
    assert {row: round(cost, 6) for row, (cost, _, _) in points.items()} == {
        "erm": 0.01,
        "irm": 0.01,
        "itta": 0.01,
        "itta + itta": 0.05,
    }
    assert costs_and_accuracies(searches, "step_time") == {}


def test_nothing_is_drawn_from_nothing(tmp_path: Path, made: Made) -> None:
    empty = fill_layout(everything_recorded(made("erm")), Collection([]), TableOptions(split="in"))
    assert draw_figures(tmp_path / "figures", empty, None) == []
    assert not (tmp_path / "figures").exists()


def test_series_differ_in_more_than_colour() -> None:
    styles = [series_style(i) for i in range(64)]
    assert len({(colour, hatch) for colour, hatch, _ in styles}) == 64
    assert len({hatch for _, hatch, _ in styles[:8]}) == 8
    assert len({marker for _, _, marker in styles[:8]}) == 8


def test_groups_that_are_not_told_apart() -> None:
    assert indistinct_groups([1.0, 2.0, 3.0], 0.5) == []
    assert indistinct_groups([1.0, 1.2, 1.4], 1.0) == [(0, 2)]
    assert indistinct_groups([1.0, 1.9, 2.8, 5.0], 1.0) == [(0, 1), (1, 2)]


@pytest.mark.slow
def test_many_methods_and_a_long_name(tmp_path: Path) -> None:
    names = [f"method {i}" for i in range(21)] + ["a name that is longer than most of the others"]
    ranks = {name: 1.0 + i for i, name in enumerate(names)}
    check(plot_critical_difference(tmp_path / "ranks.png", ranks, 4.2, "made up"))
    bars = {name: dict.fromkeys(("a", "b"), (0.5 + i / 100, 0.01)) for i, name in enumerate(names[:10])}
    check(plot_domains(tmp_path / "bars.png", bars, "made up"))
    same = {"a": 2.0, "b": 2.0, "c": 2.0}
    check(plot_critical_difference(tmp_path / "same.png", same, 1.0, "made up"))
