"""Figures of accuracy against cost, with the name of each method beside its mark."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from itta.report.label_places import Box, ends, place_boxes
from itta.report.plot_style import COLOURS, hide_spines, pyplot, save_figure

Role = Literal["base", "ours", "other"]
LOOKS: dict[Role, dict[str, Any]] = {  # colours differ, and so do markers
    "base": {"color": "black", "marker": "s", "ms": 6},
    "ours": {"color": COLOURS["adapted"], "marker": "D", "ms": 6.5},
    "other": {"color": COLOURS["other"], "marker": "o", "ms": 5},
}
BEHIND = {"facecolor": "white", "alpha": 0.8, "pad": 0.4, "lw": 0}  # of a label, where it meets a line
MARK = 5.0  # pixels around a point that labels leave free
TICKS = (0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)


@dataclass(frozen=True)
class CostPoint:
    name: str
    cost: float
    value: float
    error: float = 0.0  # 0: no whisker
    role: Role = "other"


def draw_costs(ax: Any, points: Sequence[CostPoint], label: str, floor: float | None = None) -> None:
    """Draw values against costs on a logarithmic axis. Values below the floor stand on it, with their number."""
    for point in points:
        look = LOOKS[point.role]
        if is_below(point, floor):
            ax.plot(point.cost, floor, **(look | {"marker": "v"}), mec="white", mew=0.5, zorder=3, clip_on=False)
            continue
        whisker = {"yerr": point.error, "capsize": 2, "elinewidth": 0.8} if point.error else {}
        ax.errorbar(point.cost, point.value, **whisker, **look, mec="white", mew=0.5, ls="", zorder=3)
    ax.set_xscale("log")
    costs = [point.cost for point in points]
    low, high = 0.72 * min(costs), 1.6 * max(costs)
    ax.set_xlim(low, high)
    shown = [tick for tick in TICKS if low <= tick <= high]
    ax.set_xticks(shown, [f"{tick:g}×" for tick in shown], fontsize=8)
    ax.minorticks_off()
    seen = [v for p in points if not is_below(p, floor) for v in (p.value - p.error, p.value + p.error)]
    bottom = min(seen, default=0.0) if floor is None else floor
    margin = 0.08 * max(max(seen, default=1.0) - bottom, 1.0)
    below = any(is_below(p, floor) for p in points)
    ax.set_ylim(bottom - (3 if below else 1) * margin, max(seen, default=1.0) + margin)
    if crosses_zero(ax):
        ax.axhline(0, color="black", lw=0.8, zorder=1)
    if below and floor is not None:
        ax.axhline(floor, color="#999999", lw=0.8, ls=":", zorder=1)
        top = ax.get_ylim()[1]
        ax.set_yticks([tick for tick in ax.get_yticks() if floor <= tick <= top])
    ax.set_ylabel(label, fontsize=9)
    ax.tick_params(axis="y", labelsize=8)
    ax.grid(lw=0.3, color="#cccccc")
    ax.set_axisbelow(True)
    hide_spines(ax)


def crosses_zero(ax: Any) -> bool:
    low, high = ax.get_ylim()
    return bool(low < 0 < high)


def is_below(point: CostPoint, floor: float | None) -> bool:
    return floor is not None and point.value < floor


def label_costs(figure: Any, panels: Sequence[tuple[Any, Sequence[CostPoint], float | None]]) -> None:
    """Write the names beside the points of each panel (axes, points, floor), once the figure has its final layout."""
    figure.canvas.draw()
    for ax, points, floor in panels:
        at = [tuple(ax.transData.transform((p.cost, floor if is_below(p, floor) else p.value))) for p in points]
        texts = [f"{p.name}, {p.value:.1f}".replace("-", "−") if is_below(p, floor) else p.name for p in points]
        sizes = [text_size(ax, text, p.role) for text, p in zip(texts, points)]
        marks = [Box(x - MARK, y - MARK, x + MARK, y + MARK) for x, y in at]
        for p, (x, _) in zip(points, at):
            if p.error and not is_below(p, floor):
                low, high = (ax.transData.transform((p.cost, p.value + sign * p.error))[1] for sign in (-1, 1))
                marks.append(Box(x - 3, low, x + 3, high))
        area = ax.get_window_extent()
        if crosses_zero(ax):
            zero = ax.transData.transform((points[0].cost, 0))[1]
            marks.append(Box(area.x0, zero - 1, area.x1, zero + 1))
        boxes = place_boxes(at, sizes, marks, Box(area.x0, area.y0, area.x1, area.y1))
        to_data = ax.transData.inverted()
        for point, text, place, box in zip(points, texts, at, boxes):
            start, end = ends(place, box)
            middle = ((box.left + box.right) / 2, (box.bottom + box.top) / 2)
            if (start[0] - end[0]) ** 2 + (start[1] - end[1]) ** 2 > (3 * MARK) ** 2:
                (x0, y0), (x1, y1) = (to_data.transform(spot) for spot in (start, end))
                ax.plot([x0, x1], [y0, y1], color="#999999", lw=0.5, zorder=2)
            spot = to_data.transform(middle)
            ax.text(*spot, text, ha="center", va="center", bbox=BEHIND, zorder=2.5, **text_look(point.role))


def text_look(role: Role) -> dict[str, Any]:
    return {"fontsize": 8, "color": LOOKS[role]["color"], "fontweight": "normal" if role == "other" else "bold"}


def text_size(ax: Any, text: str, role: Role) -> tuple[float, float]:
    """Width and height of a label in pixels."""
    drawn = ax.text(0.5, 0.5, text, transform=ax.transAxes, **text_look(role))
    extent = drawn.get_window_extent()
    drawn.remove()
    return extent.width + 2, extent.height


def plot_cost(path: Path, points: Mapping[str, tuple[float, float, float]], label: str) -> Path:
    """Plot accuracy against cost, with the name beside each mark: method -> (cost, mean, error)."""
    found = [CostPoint(name, cost, 100 * mean, 100 * error) for name, (cost, mean, error) in points.items()]
    figure, ax = pyplot().subplots(figsize=(6.4, 4.2), layout="constrained")
    draw_costs(ax, found, "accuracy, %  (whisker: s.e.)")
    ax.set_xlabel(label, fontsize=9)
    label_costs(figure, [(ax, found, None)])
    return save_figure(figure, path)
