"""Orders of arrival: every image once, as correlated as asked for, and the same for the same seed."""

import numpy as np
import pytest

from itta.data.streams import CLASS_ORDERS, DOMAIN_ORDERS, Order, draw_order
from itta.errors import InputError

LABELS = {
    "day": np.repeat(np.arange(5), 40),
    "night": np.random.RandomState(0).randint(5, size=151),
    "dusk": np.array([3, 1, 1]),
}


def runs(values: np.ndarray) -> int:
    """How many stretches of equal values there are."""
    return 1 + int((values[1:] != values[:-1]).sum())


@pytest.mark.parametrize("domains", DOMAIN_ORDERS)
@pytest.mark.parametrize("classes", CLASS_ORDERS)
def test_every_image_comes_once(classes: str, domains: str) -> None:
    order = draw_order(LABELS, classes, domains, seed=1)
    unequal = classes in ("zipf1", "zipf2")
    assert len(order) == 354 or unequal
    for number, labels in enumerate(LABELS.values()):
        indices = sorted(order.index[order.domain == number])
        assert len(set(indices)) == len(indices) > 0
        assert set(indices) <= set(range(len(labels)))
        assert unequal or len(indices) == len(labels)
    again, other = draw_order(LABELS, classes, domains, seed=1), draw_order(LABELS, classes, domains, seed=2)
    assert (again.domain == order.domain).all()
    assert (again.index == order.index).all()
    assert list(other.index) != list(order.index)


def test_a_domain_comes_in_the_same_order_whatever_comes_beside_it() -> None:
    alone = draw_order({"night": LABELS["night"]}, "dirichlet", seed=3)
    among = draw_order(LABELS, "dirichlet", "mixed", seed=3)
    assert (among.index[among.domain == 1] == alone.index).all()


def test_how_correlated_labels_are() -> None:
    def stretches(classes: str, concentration: float = 0.1) -> float:
        y = LABELS["day"]
        orders = [draw_order({"day": y}, classes, seed=s, concentration=concentration) for s in range(20)]
        return float(np.mean([runs(y[o.index]) for o in orders]))

    iid, clustered, tight, by_class = (
        stretches("iid"), stretches("dirichlet", 100.0), stretches("dirichlet", 0.1), stretches("sorted"),
    )  # fmt: skip
    assert by_class == 5
    assert by_class < tight < 25 < clustered < iid
    assert 140 < iid < 175  # 200 images of 5 classes: 160 expected


def test_how_domains_follow_each_other() -> None:
    labels = {"a": np.zeros(100), "b": np.zeros(100), "c": np.zeros(100)}
    turns = draw_order(labels, domains="in_turn").domain
    assert runs(turns) == 3
    assert turns.tolist() == sorted(turns)
    assert runs(draw_order(labels, domains="recurring").domain) == 9
    assert runs(draw_order(labels, domains="mixed").domain) > 150
    gradual = draw_order(labels, domains="gradual").domain
    assert 10 < runs(gradual) < 150
    assert (gradual[:25] == 0).mean() > 0.9
    assert (gradual[-25:] == 2).mean() > 0.9
    middle = [(gradual[i : i + 50] == 1).mean() for i in (25, 75, 125)]
    assert middle[0] < middle[1] < middle[2]


def test_batches_can_be_taken_from_anywhere() -> None:
    order = draw_order(LABELS, "sorted", "mixed")
    parts = [order.batch(i, 16) for i in range(23)]
    assert [len(part) for part in parts] == [16] * 22 + [2]
    assert (np.concatenate([part.index for part in parts]) == order.index).all()
    assert len(order.batch(23, 16)) == 0


def test_wrong_orders_are_told_in_words() -> None:
    with pytest.raises(InputError, match="unknown order 'by class'.*iid, sorted, dirichlet"):
        draw_order(LABELS, "by class")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="unknown order 'twice'.*recurring"):
        draw_order(LABELS, domains="twice")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="concentration must be above 0, got 0"):
        draw_order(LABELS, "dirichlet", concentration=0)


def test_one_image_and_none() -> None:
    assert draw_order({"a": np.array([2])}, "dirichlet").index.tolist() == [0]
    assert isinstance(draw_order({"a": np.array([], dtype=int)}), Order)
