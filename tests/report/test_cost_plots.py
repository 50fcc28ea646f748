from pathlib import Path

import pytest
from PIL import Image

from itta.report.cost_plots import CostPoint, draw_costs, label_costs, plot_cost
from itta.report.label_places import Box, place_boxes
from itta.report.plot_style import pyplot

AREA = Box(0, 0, 600, 400)


def test_labels_of_a_crowd_meet_neither_each_other_nor_the_edge() -> None:
    points = [(200.0 + 3 * (i % 4), 150.0 + 6 * i) for i in range(20)]
    marks = [Box(x - 5, y - 5, x + 5, y + 5) for x, y in points]
    boxes = place_boxes(points, [(60.0, 11.0)] * 20, marks, AREA)
    assert not any(a.meets(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert all(box.left >= 0 and box.bottom >= 0 and box.right <= 600 and box.top <= 400 for box in boxes)


def test_a_lonely_label_is_right_beside_its_point() -> None:
    (box,) = place_boxes([(100.0, 100.0)], [(50.0, 10.0)], [], AREA)
    assert box == pytest.approx((107, 95, 157, 105))


def test_values_below_the_floor_stand_on_it_with_their_number() -> None:
    points = [CostPoint("good", 1.0, 2.0, 0.5, "base"), CostPoint("ruined", 5.0, -38.0), CostPoint("ours", 2.0, 3.0)]
    figure, ax = pyplot().subplots()
    draw_costs(ax, points, "points gained", floor=-10.0)
    label_costs(figure, [(ax, points, -10.0)])
    low, high = ax.get_ylim()
    assert -15 < low < -10 < 3 < high
    assert min(ax.get_yticks()) >= -10
    assert {text.get_text() for text in ax.texts} == {"good", "ruined, −38.0", "ours"}
    pyplot().close(figure)


def test_a_cost_figure_is_drawn(tmp_path: Path) -> None:
    points = {"erm": (0.1, 0.5, 0.01), "itta": (0.4, 0.6, 0.02)}
    with Image.open(plot_cost(tmp_path / "cost.png", points, "seconds per image")) as picture:
        assert picture.width > 400
