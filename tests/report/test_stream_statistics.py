"""What a page tells of a stream, against numbers counted by hand."""

from collections.abc import Callable

import numpy as np
import pytest

from itta.records.story import Event, Stream
from itta.report.page.charts import Mark, line_chart, nice_ticks
from itta.report.page.stream_statistics import (
    ClassAccuracy,
    ConfusedPair,
    StreamSummary,
    block_means,
    class_accuracies,
    confusion_counts,
    even_subset,
    most_confused,
    running_shares,
    stream_summary,
)
from itta.report.page.stream_view import point_difference, view_stream

Make = Callable[..., Stream]


def test_a_stream_in_numbers(a_stream: Make) -> None:
    assert stream_summary(a_stream()) == StreamSummary(8, 8, 4 / 8, 5 / 8, changed=4, helped=2, hurt=1)


def test_images_without_a_label_do_not_count(a_stream: Make) -> None:
    found = stream_summary(a_stream(labels=(0, -1, -1, 1, 1, 1, 2, 2)))
    assert found == StreamSummary(8, 6, 4 / 6, 3 / 6, changed=4, helped=0, hurt=1)


@pytest.mark.parametrize("labels", [None, (-1,) * 8])
def test_without_labels_nothing_helps_or_hurts(a_stream: Make, labels: tuple[int, ...] | None) -> None:
    stream = a_stream(labels=labels)
    assert stream_summary(stream) == StreamSummary(8, 0, None, None, changed=4, helped=0, hurt=0)
    assert class_accuracies(stream) == []
    assert running_shares(stream).shares == {"changed": [0, 1, 1, 0, 1, 1, 0, 0]}  # a window of one image
    view = view_stream(stream, "s")
    assert view.matrices == view.pairs == []
    assert view.headline == "8 images without labels; 4 answers changed"


def test_by_class(a_stream: Make) -> None:
    expected = [
        ClassAccuracy("cat", 3, 1 / 3, 1.0),
        ClassAccuracy("dog", 3, 2 / 3, 1 / 3),
        ClassAccuracy("elk", 2, 0.5, 0.5),
    ]
    assert class_accuracies(a_stream()) == expected
    assert [c.name for c in class_accuracies(a_stream(classes=("cat", "dog", "elk", "fox")))] == ["cat", "dog", "elk"]


def test_confusion(a_stream: Make) -> None:
    before, after = view_stream(a_stream(), "s").matrices
    assert before.counts == [[1, 2, 0], [1, 2, 0], [1, 0, 1]]
    assert after.counts == [[3, 0, 0], [0, 1, 2], [1, 0, 1]]
    assert before.shares[0] == [0.333, 0.667, 0.0]


def test_most_confused_pairs() -> None:
    y = np.array([0, 0, 0, 1, 2, 2])
    before, after = (
        confusion_counts(y, np.array([1, 1, 0, 1, 0, 2]), 3),
        confusion_counts(y, np.array([1, 0, 0, 2, 0, 0]), 3),
    )
    pairs = most_confused(["a", "b", "c"], before, after, 3)
    assert pairs == [ConfusedPair("a", "b", 2, 1), ConfusedPair("c", "a", 1, 2), ConfusedPair("b", "c", 0, 1)]
    assert most_confused(["a", "b", "c"], before, after, 1) == pairs[:1]


def test_many_classes_give_pairs_and_no_matrix(a_stream: Make) -> None:
    view = view_stream(a_stream(classes=("cat", "dog", "elk", *map(str, range(18)))), "s")
    assert view.matrices == []
    assert view.pairs[0] == ConfusedPair("cat", "dog", 2, 0)


def test_the_curve_is_the_mean_of_a_window(a_stream: Make) -> None:
    rng = np.random.default_rng(0)
    y, before, after = rng.integers(3, size=(3, 5000)).tolist()
    curve = running_shares(a_stream(labels=y, before=before, after=after))
    assert curve.window == 200
    assert (len(curve.images), curve.images[0], curve.images[-1]) == (600, 200, 5000)
    for at, share in list(zip(curve.images, curve.shares["after"]))[::50]:
        naive = sum(a == b for a, b in zip(y[at - 200 : at], after[at - 200 : at])) / 200
        assert share == pytest.approx(naive)


@pytest.mark.parametrize("n", [0, 1, 2, 599, 600, 601, 10_000])
def test_thinning_keeps_the_ends(n: int) -> None:
    kept = even_subset(n).tolist()
    assert len(kept) == min(n, 600)
    assert kept == sorted(set(kept))
    if n:
        assert (kept[0], kept[-1]) == (0, n - 1)


def test_long_series_keep_their_mean() -> None:
    steps, values = block_means(range(1, 1001), np.arange(1000.0).tolist(), 10)
    assert len(steps) == len(values) == 10
    assert np.mean(values) == pytest.approx(499.5)
    assert block_means([3, 4], [1.0, 2.0]) == ([3.0, 4.0], [1.0, 2.0])


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (43.2, 43.3), (-3.0, 900.0), (50.0, 50.0), (0.0, 0.0), (1e-9, 2e-9)]
)
def test_ticks_span_the_values(low: float, high: float) -> None:
    ticks = nice_ticks(low, high)
    assert ticks[0] <= low
    assert high <= ticks[-1]
    assert 2 <= len(ticks) <= 7


@pytest.mark.parametrize("high", [2, 3, 7, 20, 31, 30_001])
def test_steps_are_counted_in_whole_numbers(high: int) -> None:
    ticks = nice_ticks(1, high, 7, whole=True)
    assert all(t == int(t) for t in ticks)
    assert 2 <= len(ticks) <= 7


def test_lines_lie_where_their_values_are() -> None:
    chart = line_chart("t", "x", {"a": ([0.0, 5.0, 10.0], [0.0, 50.0, 100.0])}, [Mark(5, "reset", "here")])
    assert chart.lines[0].path == "M0.0 300.0L500.0 150.0L1000.0 0.0"
    assert [(t.at, t.text) for t in chart.y_ticks][:2] == [(0.0, "0"), (20.0, "20")]
    assert [(m.at, m.text) for m in chart.marks] == [(50.0, "here")]


def test_marks_in_one_place_are_one(a_stream: Make) -> None:
    events = tuple(Event(i % 8, "loss", 9.0, 5.0, "reset") for i in range(1000))
    view = view_stream(a_stream(events=events), "s")
    assert len(view.chart.marks) == 8
    assert view.chart.marks[0].text.endswith("and 124 more here")
    assert view.events
    assert len(view.events.rows) == 50
    assert view.events.notes == ["And 950 more."]


def test_a_difference_of_nothing_has_no_sign() -> None:
    assert [point_difference(0.5, v) for v in (0.5, 0.50004, 0.49996, 0.51, 0.49)] == [
        "0.0",
        "0.0",
        "0.0",
        "+1.0",
        "−1.0",
    ]
