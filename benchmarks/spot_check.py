"""Train published trials again and compare their records with the published ones, byte for byte.

A trial in the records says everything that decides its training. Some trials are drawn, trained and adapted as `itta
sweep` does it, and the two sets of lines are compared. The records of a CPU are equal if the kind of CPU, the number of
threads and the version of torch are those of the published run: other ones round differently, and after some steps a
few answers differ. Records of a GPU need not be equal from run to run. Ends with status 1 if a line differs.

python -m benchmarks.spot_check --trials 3
"""

import json
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.command import run_command
from itta.errors import InputError
from itta.records import RECORDS, Record, read
from itta.records.collection import in_order
from itta.run.job import Job
from itta.settings import Adaptation
from itta.sweep.engines import EngineOptions, run_jobs

GUARDED = "guarded "  # before the name of an adapter that is guarded by default


@dataclass(frozen=True)
class Options:
    records: Path = Path("docs/results/records/benchmark_pacs.jsonl")  # published records
    trials: int = 3  # to train again
    draw: int = 0  # which trials: another number draws others
    only: tuple[str, ...] = ()  # training methods; all, unless told
    skip: tuple[str, ...] = ()  # adapters that are not run again, because they take long: memo, cotta
    threads: int = 1  # of each trial: those of the published run
    eval_every: int = 300  # steps between records, as in the published run
    stand_ins: bool = False  # the published run had --stand-ins, which the guard uses
    data: str = ""  # where the images are, if the trial's data set has no name
    out: Path | None = None  # keep the models and both sets of records here, instead of in a temporary folder


def main(options: Options) -> None:
    published = list(read(options.records))
    drawn = draw_trials(published, options)
    print(f"{machine()}, {options.threads} thread(s) a trial", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.out or Path(temporary)
        different = sum(not check(lines, folder, options) for lines in drawn)
    if different:
        sys.exit(f"{different} of {len(drawn)} trials differ: is this the same kind of CPU, with the same threads?")
    print(f"all {len(drawn)} trials have the published records, byte for byte")


def draw_trials(published: Sequence[Record], options: Options) -> list[list[Record]]:
    """The records of some trials, drawn at random but always the same; adapters to skip are left out."""
    by_trial: dict[str, list[Record]] = {}
    for r in published:
        if (not options.only or r.trial.algorithm in options.only) and plain_name(r) not in options.skip:
            by_trial.setdefault(r.trial.key, []).append(r)
    if not by_trial:
        raise InputError(f"{options.records} has no trial of {', '.join(options.only) or 'any method'}.")
    keys = sorted(by_trial)
    order = np.random.RandomState(options.draw).permutation(len(keys))
    return [in_order(by_trial[keys[i]]) for i in order[: options.trials]]


def plain_name(r: Record) -> str:
    return r.adapter.removeprefix(GUARDED)


def check(published: Sequence[Record], folder: Path, options: Options) -> bool:
    """Run one trial again; tell whether its records are the same bytes, and print the outcome."""
    trial = published[0].trial
    job_folder = folder / trial.key
    job = Job(
        trial,
        job_folder.resolve(),
        data=options.data,
        adaptation=adaptation_of(published),
        eval_every=options.eval_every,
        threads=options.threads,
        stand_ins=options.stand_ins,
        device="cpu",
    )
    failed = run_jobs({trial.key: job}, "local", EngineOptions(slots=1, cpus=options.threads, folder=folder))
    if failed:
        raise InputError(f"the trial could not be trained: {failed[trial.key]}")
    again = in_order([r for r in read(job_folder / RECORDS) if plain_name(r) not in options.skip])
    before, after = lines_of(published), lines_of(again)
    (job_folder / "published.jsonl").write_text("".join(before))
    (job_folder / "again.jsonl").write_text("".join(after))
    name = f"{trial.algorithm} on {'+'.join(trial.test_domains)}, seed {trial.trial_seed}, {trial.steps} steps"
    if before == after:
        print(f"same       {name}: {len(before)} records", flush=True)
        return True
    print(f"different  {name}:", *differences(published, again), sep="\n           ", flush=True)
    return False


def adaptation_of(published: Sequence[Record]) -> Adaptation:
    """What a sweep must have been asked for to write these records."""
    adapted = [r for r in published if r.adapter != "source"]
    names = tuple(dict.fromkeys(map(plain_name, adapted)))
    orders = tuple(dict.fromkeys(str(r.stream["order"]) for r in adapted)) or ("iid",)
    sizes = {int(r.stream["batch_size"]) for r in adapted} or {32}
    if len(sizes) > 1:
        raise InputError(f"the adapters of a trial had batches of several sizes: {sorted(sizes)}.")
    return Adaptation(names, batch_size=sizes.pop(), orders=orders)


def lines_of(records: Sequence[Record]) -> list[str]:
    return [json.dumps(r.to_json()) + "\n" for r in records]


def differences(published: Sequence[Record], again: Sequence[Record]) -> Iterator[str]:
    """Name the lines that are missing, and the first value that differs in each other line."""

    def name(r: Record) -> str:
        return f"{r.adapter} at step {r.step}" + (f", {r.stream['order']}" if r.stream else "")

    before, after = ({name(r): r.to_json() for r in records} for records in (published, again))
    yield from (f"{line}: not published" for line in after if line not in before)
    for line, values in before.items():
        if line not in after:
            yield f"{line}: not measured this time"
        elif values != after[line]:
            yield f"{line}: {next(first_difference(values, after[line]))}"


def first_difference(a: Any, b: Any, at: str = "") -> Iterator[str]:
    """
    >>> next(first_difference({"a": {"b": 1}}, {"a": {"b": 2}}))
    'a.b was 1, is 2'
    """
    if isinstance(a, dict) and isinstance(b, dict):
        for key in dict.fromkeys([*a, *b]):
            yield from first_difference(a.get(key), b.get(key), f"{at}.{key}" if at else str(key))
    elif a != b:
        yield f"{at} was {a}, is {b}"


def machine() -> str:
    """The facts on which equality depends: processor, system and version of torch."""
    return f"{processor()}, {platform.system()} {platform.machine()}, torch {torch.__version__}"


def processor() -> str:
    """The processor's name, from the system's own list where there is one."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.is_file() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or "unknown processor"


if __name__ == "__main__":
    run_command("spot_check", main, Options(), __doc__)
