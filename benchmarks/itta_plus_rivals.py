"""Run methods that train the network at test time on streams of benchmarks.itta_plus_grid, bare and guarded.

Each method runs on the network itself: a stream of 600 images at 64 px takes about 10 s of a core. So only models of
the first seed are measured, in batches of 16, and itta+ runs on the same streams. The same command continues after an
interruption. It writes itta_plus_rivals.csv to docs/results/records.
"""

import time
from dataclasses import dataclass, replace

import torch

from benchmarks import itta_plus_grid
from benchmarks.command import run_command, write_rows
from benchmarks.itta_plus_grid import Row, Stream, model_of, models, named, streams, trips
from benchmarks.quick_models import name_of
from itta.adapters import adapt
from itta.algorithms import Algorithm
from itta.data.loaders import stream as batches_of
from itta.records import append_lines, read_lines
from itta.store.model import load
from itta.trial import Trial


@dataclass(frozen=True)
class Options:
    grid: itta_plus_grid.Options = itta_plus_grid.Options(seeds=1, training=("erm",), trained_only=True)
    methods: tuple[str, ...] = ("itta+", "shot", "tent", "roid", "rotta")
    orders: tuple[str, ...] = itta_plus_grid.ORDERS
    batches: tuple[int, ...] = (16,)
    guards: tuple[bool, ...] = (False, True)


def run_stream(trial: Trial, trained: Algorithm, stream: Stream, method: str, guard: bool) -> Row:
    adapter, right, before = adapt(trained, method, guard=guard), 0, 0
    for _, x, y in batches_of(stream.domain, stream.order, stream.batch):
        if len(x) == 1 and stream.batch > 1:
            continue  # the last image: methods with batch normalisation cannot take it alone
        right += int((adapter(x).argmax(1) == y).sum())
        with torch.no_grad():
            before += int((trained.predict(x).argmax(1) == y).sum())
    n = len(stream.order)
    return Row(
        *model_of(trial), stream.kind, stream.batch, stream.draw, n, round(100 * before / n, 2), named(method, guard),
        round(100 * (right - before) / n, 3), trips(adapter),
    )  # fmt: skip


def main(options: Options) -> None:
    found: list[Row] = []
    for batch in options.batches:
        for trial, folder, dataset in models(options.grid):
            file = options.grid.out / "rivals" / f"{folder.name}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            known = [Row(**values) for values in read_lines(file)] if file.is_file() else []
            done = {(row.method, row.kind, row.batch) for row in known}
            trained = load(folder)
            every = [s for s in streams(trial, dataset, options.grid.images) if s.kind in options.orders]
            for stream in (s for s in every if s.batch == batch):
                for method, guard in ((m, g) for m in options.methods for g in options.guards):
                    if (named(method, guard), stream.kind, batch) in done or (method == "itta+" and guard):
                        continue
                    start = time.perf_counter()
                    row = run_stream(trial, trained, stream, method, guard)
                    append_lines(file, [row._asdict()])
                    taken = time.perf_counter() - start
                    print(name_of(trial), row.kind, batch, row.method, f"{row.gain:+.1f} {taken:.0f} s", flush=True)
    for _, folder, _ in models(replace(options.grid, seeds=3, training=("erm", "itta"))):
        file = options.grid.out / "rivals" / f"{folder.name}.jsonl"
        found += [Row(**values) for values in read_lines(file)] if file.is_file() else []
    write_rows(options.grid.records / "itta_plus_rivals.csv", found, Row._fields)


if __name__ == "__main__":
    run_command("itta_plus_rivals", main, Options(), __doc__)
