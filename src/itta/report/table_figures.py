"""The figures of a filled layout: bars, ranks, searches and costs."""

from collections import defaultdict
from pathlib import Path

from itta.metrics.accuracy import mean
from itta.metrics.significance import Ranks
from itta.report.cells import average_cell
from itta.report.cost_plots import plot_cost
from itta.report.filled_layout import FilledLayout
from itta.report.plots import plot_critical_difference, plot_domains, plot_sensitivity

COSTS = {"seconds_per_image": "seconds per image at test time", "step_time": "seconds per training step"}
FEWEST_VALUES = 3  # of a hyper-parameter; with fewer it gets no panel


def draw_figures(folder: Path, filled: FilledLayout, ranks: Ranks | None) -> list[Path]:
    """Draw bars by domain, mean ranks, the trials of each search, and accuracy against cost, if there is data."""
    drawn = []
    bars = {
        row: {c.label: (cell.mean, cell.error) for c, cell in cells.items() if cell.values}
        for row, cells in filled.targets.items()
    }
    bars = {row: found for row, found in bars.items() if found}
    if bars:
        drawn.append(plot_domains(folder / "domains.png", bars, filled.layout.title))
    if ranks:
        over = f"mean ranks over {ranks.targets} targets; Friedman's p = {ranks.friedman:.2g}"
        title = f"{filled.layout.title}: {over}"
        drawn.append(plot_critical_difference(folder / "ranks.png", ranks.mean, ranks.critical_difference, title))
    for row, runs in search_trials(filled).items():
        name = "".join(c if c.isalnum() else "-" for c in row)
        drawn.append(plot_sensitivity(folder / f"sensitivity-{name}.png", runs, f"{row}: every trial of the search"))
    for cost, label in COSTS.items():
        points = costs_and_accuracies(filled, cost)
        if len(points) > 1:
            drawn.append(plot_cost(folder / f"cost-{cost}.png", points, label))
    return drawn


def search_trials(filled: FilledLayout) -> dict[str, dict[str, list[tuple[float, float, float]]]]:
    """The trials of models as trained: row -> hyper-parameter -> (value, validation, target) of each trial.

    Validation and target are accuracies, less their mean over the trials with the same target.
    """
    found: dict[str, dict[str, list[tuple[float, float, float]]]] = {}
    for row in filled.layout.rows:
        runs = defaultdict(list)
        for column, cell in filled.targets[row.label].items() if row.adapter == "source" else ():
            trials = [c for c in cell.search if filled.split in c.record.accuracy.get(column.target, {})]
            targets = [c.record.accuracy[column.target][filled.split] for c in trials]
            for choice, target in zip(trials, targets):
                validation = choice.validation - mean([c.validation for c in trials])
                for name, value in choice.record.hparams.items():
                    if isinstance(value, (int, float)) and not isinstance(value, bool):
                        runs[name].append((value, validation, target - mean(targets)))
        varied = {name: values for name, values in runs.items() if len({v for v, _, _ in values}) >= FEWEST_VALUES}
        if varied:
            found[row.label] = varied
    return found


def costs_and_accuracies(filled: FilledLayout, cost: str) -> dict[str, tuple[float, float, float]]:
    """Row -> (mean cost, accuracy, error), for rows with this cost in all their records."""
    found = {}
    for row, cells in filled.targets.items():
        records = [r for cell in cells.values() for r in cell.records.values()]
        whole = average_cell(list(cells.values()))
        if whole.values and all(cost in r.logs for r in records):
            found[row] = (mean([r.logs[cost] for r in records]), whole.mean, whole.error)
    return found
