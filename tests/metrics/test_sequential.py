"""The test that may be looked at after every label: false alarms, power, and labels that are still needed."""

import numpy as np
import pytest

from itta.metrics.sequential import judge_differences, labels_needed, log_wealth


def draw(population: np.ndarray, runs: int, labels: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([rng.permutation(population)[:labels] for _ in range(runs)])


def decided(paths: np.ndarray, population: int) -> np.ndarray:
    """[runs, labels]: which runs are decided, either way, at each look."""
    return np.maximum(log_wealth(paths, population), log_wealth(-paths, population)) >= np.log(40)


@pytest.mark.parametrize(
    "population",
    [
        np.repeat([-1, 0, 1], [350, 300, 350]),
        np.repeat([-1, 1], [100, 100]),  # the last look has every label
        np.repeat([-1, 0, 1], [20, 960, 20]),
    ],
)
def test_false_alarms_over_200_looks_stay_below_five_percent(population: np.ndarray) -> None:
    paths = draw(population, 1000, 200)
    assert decided(paths, len(population)).any(1).mean() <= 0.05


def test_a_harmful_adapter_is_not_called_helpful() -> None:
    population = np.repeat([-1, 0, 1], [110, 100, 90])
    helpful = log_wealth(draw(population, 1000, 200), 300) >= np.log(40)
    assert helpful.any(1).mean() <= 0.025


def test_three_points_are_decided_with_less_than_half_of_the_labels_of_random_labelling() -> None:
    """Of 2,000 images 240 changed: 120 for the better, 60 for the worse, 60 from one mistake to another."""
    changed = np.repeat([1, -1, 0], [120, 60, 60])
    everything = np.concatenate([changed, np.zeros(1760)])

    def labels(population: np.ndarray) -> float:
        seen = decided(draw(population, 100, len(population)), len(population))
        assert seen.any(1).all()
        return float((seen.argmax(1) + 1).mean())

    assert labels(changed) < 0.5 * labels(everything)


def test_wealth_is_a_fair_game() -> None:
    """Without replacement from differences that sum to 0, the mean wealth stays 1: by all orders of a small case."""
    from itertools import permutations

    paths = np.array(list(set(permutations([1, 1, 0, -1, -1]))))
    assert np.exp(log_wealth(paths[:, :3], 5)).mean(0) == pytest.approx(1.0)


def test_all_labels_decide_exactly() -> None:
    assert judge_differences(np.array([1.0, -1, 0, 1]), 4).decision == "helps"
    assert judge_differences(np.array([-1.0, 1, 0, -1]), 4).decision == "hurts"
    assert judge_differences(np.array([-1.0, 1]), 2).decision == "equal"
    assert judge_differences(np.zeros(0), 0).decision == "equal"  # no answer changed


def test_labels_needed_shrink_as_evidence_grows() -> None:
    few, more = (labels_needed(np.tile([1.0, 1, 0], n), 500) for n in (1, 5))
    assert 0 < more < few
    verdict = judge_differences(np.zeros(0), 40)
    assert (verdict.decision, verdict.e_helps) == ("undecided", 1.0)
    assert 0 < verdict.still_needed <= 40


def test_the_predicted_number_of_labels_is_about_right() -> None:
    population = np.repeat([1, -1, 0], [300, 100, 100])
    paths = draw(population, 10, 500)
    start = 10
    open_ = paths[~decided(paths, 500)[:, :start].any(1)]
    predicted = np.median([labels_needed(path[:start].astype(float), 500) for path in open_])
    needed = np.median(decided(open_, 500).argmax(1) + 1 - start)
    assert needed / 2.5 < predicted < needed * 2.5
