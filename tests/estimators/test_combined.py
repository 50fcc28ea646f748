"""The regression on stand-ins, its interval, and its settings."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from itta.estimators.combined import Combined, Regression, Settings, half_of_gain, quantile
from itta.estimators.image_shares import class_shares, right_probabilities
from tests.estimators.test_every_estimator import known, make_evidence  # noqa: F401

RECORDS = Path(__file__).parents[2] / "docs" / "results" / "records"


def test_settings_are_those_that_were_selected_on_sources() -> None:
    selected = json.loads((RECORDS / "estimates_selection.json").read_text())
    assert json.loads(json.dumps(asdict(Settings()))) == selected


def test_the_regression_is_ridge_and_leaves_out_whole_kinds() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(40, 2, generator=g, dtype=torch.double)
    y = x @ torch.tensor([1.0, -2.0], dtype=torch.double) + 3
    kinds = torch.arange(40) // 4
    fitted = Regression(x, y, kinds, 1e-9)
    assert fitted(torch.tensor([1.0, 1.0], dtype=torch.double)) == pytest.approx(2.0, abs=1e-6)
    assert torch.allclose(fitted.unseen, y, atol=1e-6)
    odd = y.clone()
    odd[:4] += 10  # a kind that is unlike the others cannot explain itself
    assert float((Regression(x, odd, kinds, 1e-9).unseen - odd)[:4].abs().min()) > 5


def test_intervals_hold_the_truth_of_shifts_like_the_stand_ins(known) -> None:  # noqa: F811
    held = []
    for seed in range(100, 140):
        right = 0.3 + 0.6 * (seed - 100) / 40
        evidence, labels = make_evidence(right, 0.3 + 0.6 * right, seed=seed)
        found = Combined(Settings(widening=1.0)).estimate(evidence, known).before
        held.append(found.low <= float((evidence.answers == labels).float().mean()) <= found.high)
    assert sum(held) >= 34


def test_the_quantile_is_conformal() -> None:
    errors = torch.arange(1.0, 20.0)
    assert quantile(errors) == 18.0  # the ⌈20 · 0.9⌉-th of 19
    assert quantile(errors[:3]) == 3.0


def test_the_interval_of_the_gain_grows_with_the_changed_answers_and_shrinks_with_images(known) -> None:  # noqa: F811
    few, many = half_of_gain(0.02, 600, known), half_of_gain(0.2, 600, known)
    assert 0 < few < many < half_of_gain(0.2, 60, known)
    assert half_of_gain(0.0, 600, known) == 0.0
    without = replace(known, columns={name: c for name, c in known.columns.items() if name != "changed"})
    assert half_of_gain(0.2, 10**9, without) == pytest.approx(1.645 * 0.2 * 0.2, rel=1e-3)  # the usual deviation


def test_an_estimate_is_shared_out_over_images_and_classes(known) -> None:  # noqa: F811
    evidence, _ = make_evidence(0.6, 0.66)
    found = Combined().estimate(evidence, known)
    before, after = right_probabilities(evidence, found)
    assert float(before.mean()) == pytest.approx(found.before.value, abs=1e-3)
    assert float(after.mean()) == pytest.approx(found.after.value, abs=1e-3)
    shares = class_shares(evidence.after, after, ("a", "b", "c", "d"))
    assert sum(s.images for s in shares) == len(evidence)
    few = class_shares(evidence.after[:40], after[:40], ("a", "b", "c", "d"))
    assert len(few) < 4  # not enough images speak


def test_another_adapter_is_judged_by_the_opinions(known) -> None:  # noqa: F811
    """The regression knows the gains of itta+; answers against all opinions are expected to lose."""
    evidence, _ = make_evidence(0.7, 0.8)
    against = replace(evidence, after=(evidence.answers + 1) % 4, by_itta_plus=False)
    lost = Combined().estimate(against, known)
    assert lost.gain.value < -0.2
    assert lost.helps < 0.05
    assert Combined().estimate(replace(against, opinions={}), known).gain.value == 0.0
    same = Combined().estimate(replace(evidence, after=evidence.answers), known)
    assert (same.gain.value, same.helps, same.before) == (0.0, 0.5, same.after)
