"""The choice of the settings of an estimate, on errors written by hand."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.estimates_selection import POOL, START, Search, choose, leave_domains_out, widen
from itta.estimators.combined import Settings


class Written(Search):
    """Errors that depend on the statistics: all four fit every domain, three of them only the domains a and b."""

    def __init__(self) -> None:
        self.targets = np.repeat(["a", "b", "c"], 10)
        self.drawn = np.linspace(-1, 1, 30)

    def errors(self, settings: Settings) -> np.ndarray:
        wrong = {POOL: 2.0, POOL[1:]: 1.0}.get(settings.accuracy_from, 9.0)
        size = np.where((self.targets == "c") & (settings.accuracy_from == POOL[1:]), 20.0, wrong)
        half = np.hypot(settings.widening * 4.0, 0.5)
        columns = (size * self.drawn, np.full(30, half), self.drawn, np.full(30, settings.gain_widening))
        return np.stack(columns, 1)


def test_the_lowest_squared_error_is_chosen_and_nine_of_ten_intervals_hold() -> None:
    search = Written()
    chosen, tried = choose(search, np.ones(30, dtype=bool))
    assert chosen.accuracy_from == POOL
    assert {t.setting for t in tried} == {"accuracy_from", "ridge", "gain_from", "gain_ridge"}
    e = search.errors(chosen)
    assert np.mean(np.abs(e[:, 0]) <= e[:, 1]) >= 0.9
    assert np.mean(np.abs(e[:, 2]) <= e[:, 3]) >= 0.9


def test_a_widening_is_the_smallest_that_suffices() -> None:
    search = Written()
    used = np.ones(30, dtype=bool)
    settings = replace(START, accuracy_from=POOL)
    wide = widen(search, settings, used, "widening")
    short = search.errors(replace(settings, widening=wide - 0.1))
    assert np.mean(np.abs(short[:, 0]) <= short[:, 1]) < 28 / 30  # ⌈31 · 0.9⌉ of 30
    assert widen(search, settings, used, "gain_widening") == pytest.approx(1.0)


def test_a_domain_is_judged_by_the_choice_of_the_others() -> None:
    """Without c, three statistics look best; that fails on c, and shows."""
    unseen = leave_domains_out(Written())
    assert np.abs(unseen[20:, 0]).max() == pytest.approx(20.0)
    assert np.abs(unseen[:20, 0]).max() <= 2.0
