"""Draw the benchmark: accuracy against the cost of training, and what test-time methods gain against their cost.

Costs are ratios, because records of a sweep hold no times: those of `benchmarks.methods_cost` and
`benchmarks.adapt_cost` with the network and the settings of the quick recipe.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from benchmarks.benchmark_results import ADAPTERS, ORDERS, Results, name_of
from itta.metrics.accuracy import mean_and_error
from itta.report.cost_plots import CostPoint, Role, draw_costs, label_costs
from itta.report.layouts import Row
from itta.report.plot_style import pyplot, save_figure

FLOOR = -10.0  # points: what lost more stands at the lower edge, with its number
ADAPTING = "cost of adapting and predicting, relative to predicting"
KINDS = {  # methods whose steps are of several kinds: their mean counts
    "dann": ("dann generator", "dann discriminator"),
    "cdann": ("cdann generator", "cdann discriminator"),
    "metareg": ("metareg meta", "metareg final"),
}


def read_costs(path: Path) -> dict[str, float]:
    """Read ratios of costs by name."""
    return {name: entry["ratio"] for name, entry in json.loads(path.read_text()).items()}


def training_points(results: Results, costs: Mapping[str, float]) -> list[CostPoint]:
    """Every training method with all targets: cost of its whole training, relative to ERM's, and mean accuracy."""
    usual = results.find("erm")
    found = []
    for row in results.rows:
        cell = results.mean(row)
        kinds = KINDS.get(row.algorithm, (row.algorithm,))
        if row.adapter != "source" or not cell.values or not all(kind in costs for kind in kinds):
            continue
        cost = mean(costs[kind] for kind in kinds) * steps_of(results, row) / steps_of(results, usual or row)
        error = 100 * cell.error if len(cell.values) > 1 else 0.0
        name = name_of(row).replace("'s training", "")
        found.append(CostPoint(name, cost, 100 * cell.mean, error, role_of(row.algorithm)))
    return found


def role_of(name: str) -> Role:
    return "base" if name == "erm" else "ours" if name in ("itta", "guarded itta+") else "other"


def steps_of(results: Results, row: Row) -> int:
    """The training steps of a row."""
    cells = results.filled.targets[row.label].values()
    return next(r.trial.steps for c in cells for r in c.records.values())


def adapter_points(results: Results, order: str, costs: Mapping[str, float]) -> list[CostPoint]:
    """Every adapter: its cost relative to plain prediction, and its gain, mean over the models of ERM and ITTA."""
    found = []
    for adapter in dict.fromkeys(row.adapter for row in results.rows if row.adapter != "source"):
        gains: list[float] = []
        for training in ("erm", "itta"):
            row, plain = results.find(training, adapter, order), results.find(training)
            if row and plain:
                after, before = results.mean(row).values, results.mean(plain).values
                gains += [100 * (after[key] - before[key]) for key in after if key in before]
        cost = costs.get(adapter.removeprefix("guarded "))
        if gains and cost is not None:
            middle, error = mean_and_error(gains)
            name = ADAPTERS.get(adapter, adapter).replace("`", "")
            found.append(CostPoint(name, cost, middle, error if len(gains) > 1 else 0.0, role_of(adapter)))
    return found


def draw(path: Path, training: Results, pairs: Results, records: Path) -> Path:
    """Draw training methods at the left, and adapters in each order of the stream at the right."""
    costs = [read_costs(records / f"cost_{name}.json") for name in ("training", "adapting")]
    training_floor = floor_of(methods := training_points(training, costs[0]))
    adapters = {order: adapter_points(pairs, order, costs[1]) for order in ORDERS}
    right = [(order, points) for order, points in adapters.items() if points]
    figure = pyplot().figure(figsize=(11.5, 7), layout="constrained")
    grid = figure.add_gridspec(max(1, len(right)), 2 if right else 1)
    panels = [(figure.add_subplot(grid[:, 0]), methods, training_floor)]
    panels += [(figure.add_subplot(grid[i, 1]), points, FLOOR) for i, (_, points) in enumerate(right)]
    titles = ["Training methods: accuracy on a domain never seen"]
    titles += [f"Test-time methods: gain, {ORDERS[order]}" for order, _ in right]
    for i, ((ax, points, floor), title) in enumerate(zip(panels, titles)):
        ax.set_title(title, fontsize=10, loc="left")
        draw_costs(ax, points, f"{'points gained' if i else 'mean accuracy, %'}  (whisker: s.e.)", floor)
    panels[0][0].set_xlabel("cost of training, relative to ERM", fontsize=9)
    panels[-1][0].set_xlabel("cost of training, relative to ERM" if not right else ADAPTING, fontsize=9)
    label_costs(figure, panels)
    return save_figure(figure, path)


def floor_of(points: Sequence[CostPoint]) -> float | None:
    """The lowest accuracy to draw in its place, so that a method that failed does not squeeze the others."""
    base = next((p.value for p in points if p.role == "base"), None)
    return base + FLOOR if base is not None and min(p.value for p in points) < base + FLOOR else None
