"""How often the guard's watch of the estimated gain puts adapters on trial: those that gain, and those that lose.

The models and streams are those of benchmarks.estimates: run that first. The answers of itta+, T3A and LAME are kept
there; those of TENT are computed here, and kept. The watch sees the answers 16 at a time, as in a guard, and no label.
The same command goes on after an interruption. It writes estimates_guard.csv and prints the table of
docs/results/estimates.md.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.command import run_command, write_rows
from benchmarks.estimates import kept_answers, known_stand_ins, write_tensors
from benchmarks.itta_plus_grid import Options, Stream, models, streams
from benchmarks.quick_models import name_of
from itta.adapters import adapt
from itta.adapters.diagnosis import Diagnosis, Rules
from itta.adapters.estimated_gain import Tally
from itta.adapters.guard import Hparams
from itta.algorithms import Algorithm
from itta.data.loaders import stream as read_stream
from itta.store.model import load

METHODS = ("itta+", "t3a", "lame", "tent")
BATCH = 16


class Row(NamedTuple):
    dataset: str
    target: str
    seed: int
    method: str
    changed: float  # share of the answers, %
    gain: float  # points
    highest: float  # chance of a loss, along the stream
    trial_at: int  # images before the first trial; -1: none


def answers_of_tent(out: Path, folder: Path, trained: Algorithm, stream: Stream) -> Tensor:
    file = out / "answers" / folder.name / "tent.pt"
    if not file.is_file():
        adapter = adapt(trained, "tent", guard=False)
        batches = (x for _, x, _ in read_stream(stream.domain, stream.order, stream.batch))
        write_tensors(file, {"tent": torch.cat([adapter(x).argmax(1) for x in batches])})
    return torch.load(file, weights_only=True)["tent"]


def watch_stream(trained: Algorithm, tally: Tally, before: Tensor, after: Tensor) -> tuple[float, int]:
    """The highest chance of a loss along a stream, and the images before it first exceeds the guard's limit."""
    limit, referee = Hparams().max_loss_chance, Diagnosis(trained.n_classes, Rules(), trained.confusions)
    highest, trial_at = 0.0, -1
    for at in range(0, len(before), BATCH):
        p, own = before[at : at + BATCH], after[at : at + BATCH]
        log_p = p.clamp(min=1e-9).log()
        tally.add(torch.nn.functional.one_hot(own, p.shape[1]), log_p, referee(log_p).posterior)
        highest = max(highest, tally.chance_of_loss)
        if trial_at < 0 and tally.chance_of_loss > limit:
            trial_at = at
    return highest, trial_at


def measure(options: Options) -> Iterator[Row]:
    for trial, folder, dataset in models(options):
        trained = load(folder)
        known = known_stand_ins(options.out, folder, trained, dataset, trial)
        stream = next(s for s in streams(trial, dataset, options.images) if (s.kind, s.batch) == ("iid", BATCH))
        kept = kept_answers(options.out, folder, trained, stream)
        kept["tent"] = answers_of_tent(options.out, folder, trained, stream)
        y, plain = kept["labels"], kept["before"].argmax(1)
        for method in METHODS:
            after = kept[method]
            gain = float((after == y).float().mean() - (plain == y).float().mean())
            changed = float((after != plain).float().mean())
            highest, at = watch_stream(trained, Tally(known), kept["before"], after)
            where = (Path(trial.dataset).name, trial.test_domains[0], trial.trial_seed, method)
            yield Row(*where, round(100 * changed, 1), round(100 * gain, 2), round(highest, 3), at)
        print(name_of(trial), file=sys.stderr, flush=True)


def table(rows: list[Row]) -> str:
    lines = ["| method | cells | mean gain | cells that lose | put on trial: of those | of the others | after images |"]
    lines += ["| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for method in METHODS:
        own = [r for r in rows if r.method == method]
        lose, others = ([r for r in own if (r.gain < 0) == wanted] for wanted in (True, False))
        tried = [r.trial_at for r in own if r.trial_at >= 0]
        after = f"{np.mean(tried):.0f}" if tried else "-"
        counts = [f"{sum(r.trial_at >= 0 for r in part)} of {len(part)}" for part in (lose, others)]
        gain = np.mean([r.gain for r in own])
        lines.append(f"| {method} | {len(own)} | {gain:+.1f} | {len(lose)} | {counts[0]} | {counts[1]} | {after} |")
    return "\n".join(lines)


def main(options: Options) -> None:
    rows = list(measure(options))
    write_rows(options.records / "estimates_guard.csv", rows, Row._fields)
    print(table(rows))


if __name__ == "__main__":
    run_command("estimates_guard", main, Options(training=("erm",)), __doc__)
