"""Choose the guard's limits on source domains only, with LAME and T3A inside, and print them.

The models and domains are those of benchmarks.itta_plus_selection; the streams are in random order, sorted and
Dirichlet, in batches of 16. The rule: of all settings, keep those with the fewest points lost beyond half a point,
summed over models, domains, streams and methods; of these, the one with the highest mean gain wins. The network runs
once. The same command continues after an interruption. It writes guard_limits.csv to docs/results/records.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.command import run_command, write_rows
from benchmarks.itta_plus_selection import Options as PairOptions
from benchmarks.quick_models import name_of, quick_models
from benchmarks.replay import Kept, features_model, look, points, run
from itta.adapters import adapt
from itta.algorithms import Algorithm
from itta.data.streams import draw_order
from itta.records import append_lines, read_lines
from itta.seeds import derive_seed
from itta.store.model import load

ORDERS = ("iid", "sorted", "dirichlet")
METHODS = ("lame", "t3a")
ALLOWED = -0.5  # points of a stream that count as no loss, as in benchmarks.itta_plus_selection
SETTINGS: dict[str, dict[str, float] | None] = {
    "no guard": None,
    "budget 2, probation 64": {"budget": 2.0, "probation": 64},
    "budget 1.5, probation 64": {"budget": 1.5, "probation": 64},
    "budget 1, probation 64": {"budget": 1.0, "probation": 64},
    "budget 2, probation 128": {"budget": 2.0, "probation": 128},
    "budget 1.5, probation 128": {"budget": 1.5, "probation": 128},
    "budget 1, probation 128": {"budget": 1.0, "probation": 128},
    "budget 2, probation 256": {"budget": 2.0, "probation": 256},
    "budget 1.5, probation 256": {"budget": 1.5, "probation": 256},
    "budget 1, probation 256": {"budget": 1.0, "probation": 256},
}


class Row(NamedTuple):
    cell: str  # model and domain
    order: str
    method: str
    setting: str
    gain: float  # points over the trained model


@dataclass(frozen=True)
class Options:
    pairs: PairOptions = PairOptions()


def streams(options: PairOptions) -> Iterator[tuple[str, Algorithm, dict[str, Kept]]]:
    """Yield the cell, the model, and labels, logits and features along each order; they are kept in a file."""
    for trial, folder, dataset in quick_models(options, seeds=options.seeds, pairs=True):
        trained = load(folder)
        for target in trial.test_domains:
            file = options.out / "guard" / f"{name_of(trial)}@{target}.pt"
            if not file.is_file():
                domain = dataset.domain(target)
                drawn = np.random.RandomState(derive_seed(0, "grid", target)).permutation(len(domain))
                chosen = np.sort(drawn[: options.images])
                looked, found = look(trained, domain, chosen), {}
                for order in ORDERS:
                    rows = torch.from_numpy(draw_order({"target": domain.labels[chosen]}, order).index)
                    found[order] = {
                        name: getattr(looked, name)[rows].clone() for name in ("labels", "plain", "features")
                    }
                file.parent.mkdir(parents=True, exist_ok=True)
                torch.save(found, file.with_suffix(".tmp"))
                file.with_suffix(".tmp").replace(file)
            yield file.stem, trained, torch.load(file, weights_only=True)


def rows_of(cell: str, trained: Algorithm, kept: dict[str, Kept]) -> Iterator[Row]:
    model = features_model(trained)
    for order, stream in kept.items():
        for method in METHODS:
            for setting, limits in SETTINGS.items():
                adapter = adapt(model, method, guard=False if limits is None else limits)
                yield Row(cell, order, method, setting, round(points(run(adapter, stream["features"], 16), stream), 3))


def summary(rows: list[Row], setting: str) -> tuple[float, float, float]:
    """Return the points lost beyond the allowed ones, the mean gain, and the worst stream of a setting."""
    gains = [row.gain for row in rows if row.setting == setting]
    return sum(max(0.0, ALLOWED - gain) for gain in gains), mean(gains), min(gains)


def choose(rows: list[Row]) -> str:
    """Return the setting that loses least beyond the allowed points; of several, the one with the highest mean."""
    found = {setting: summary(rows, setting) for setting, limits in SETTINGS.items() if limits is not None}
    return max(found, key=lambda setting: (-round(found[setting][0], 2), found[setting][1]))


def main(options: Options) -> None:
    found: list[Row] = []
    for cell, trained, kept in streams(options.pairs):
        file = options.pairs.out / "guard" / f"{cell}.jsonl"
        if not file.is_file():
            append_lines(file, [row._asdict() for row in rows_of(cell, trained, kept)])
            print(cell, flush=True)
        found += [Row(**values) for values in read_lines(file)]
    write_rows(options.pairs.records / "guard_limits.csv", found, Row._fields)
    for setting in SETTINGS:
        lost, gain, worst = summary(found, setting)
        print(f"{setting}: lost beyond {ALLOWED:g} {lost:.2f}, mean {gain:+.2f}, worst {worst:+.2f}")
    print("chosen:", choose(found))


if __name__ == "__main__":
    run_command("guard_limits", main, Options(), __doc__)
