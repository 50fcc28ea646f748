"""How long a report over many records takes, and how much memory.

Makes records such as a sweep leaves behind: a folder for each trial, with the checkpoints of its training and what each
adapter measured on the one with the best source validation; every two domains are left out as well, for selection by
leave-one-domain-out. Numbers are drawn by a seed. `itta report` then reads them in a process of its own, once for each
way to select; told are its seconds, from the command to its end, those of them in which it was at work (on a busy
machine the rest is waiting), and the highest memory that the process had.
"""

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table

from itta.records import Record, write_all
from itta.records.domainbed import ENVIRONMENTS
from itta.settings import Adaptation
from itta.sweep.plan import Sweep
from itta.trial import Trial

SELECTIONS = ("training-domain", "leave-one-domain-out", "oracle")
ALGORITHMS = (
    "erm",
    "irm",
    "groupdro",
    "mixup",
    "mldg",
    "coral",
    "mmd",
    "dann",
    "sagnet",
    "fishr",
    "itta",
    "consistency",
)
ADAPTERS = ("tent", "t3a", "lame", "itta+", "eata", "sar")
STEPS, EVERY = 5001, 500
# A process is charged with the memory of the one it was started from, so a small one starts the report.
WATCH = """
import json, resource, subprocess, sys, time
begun = time.monotonic()
status = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
seconds, used = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps(dict(status=status, seconds=seconds, cpu=used.ru_utime + used.ru_stime, rss=used.ru_maxrss)))
"""


@dataclass(frozen=True)
class Options:
    records: int = 100_000
    seconds: float = 20.0  # a report may take
    mib: float = 1024.0  # a report may hold
    one_file: bool = False  # all records in one file, instead of a folder for each trial
    folder: Path | None = None  # to work in; a temporary one if not given
    json: bool = False  # print one JSON object and nothing else


@dataclass(frozen=True)
class Cost:
    seconds: float
    cpu: float  # seconds of it that the process worked
    mib: float


def trials() -> Iterator[Trial]:
    """DomainBed's search, data set after data set: 20 draws, 3 seeds, every target and every two."""
    for data in ("PACS", "VLCS", "OfficeHome", "TerraIncognita"):
        sweep = Sweep(
            {data: ENVIRONMENTS[data]}, ALGORITHMS, pairs=True, steps=STEPS, backbone="resnet18", image_size=224
        )
        yield from sweep.trials()


def records_of(trial: Trial) -> list[Record]:
    """What a trial leaves behind: every checkpoint, and the adapters on the best one."""
    rng = random.Random(trial.key)
    hparams = {
        "lr": 10 ** rng.uniform(-5, -3.5),
        "batch_size": rng.randrange(8, 45),
        "weight_decay": 10 ** rng.uniform(-6, -2),
        "resnet_dropout": rng.choice((0.0, 0.1, 0.5)),
        "single_source": "split",
    }
    found = []
    for step in (*range(EVERY, STEPS, EVERY), STEPS):
        accuracy = {d: {"out": rng.uniform(0.7, 0.95)} for d in trial.train_domains}
        accuracy |= {d: {s: rng.uniform(0.4, 0.8) for s in ("in", "out", "all")} for d in trial.test_domains}
        logs = {"loss": rng.random(), "penalty": rng.random()}
        found.append(Record(trial, step, "source", accuracy, hparams, logs=logs))
    if len(trial.test_domains) > 1:
        return found
    best = max(found, key=lambda r: sum(r.accuracy[d]["out"] for d in trial.train_domains))
    stream = {"order": "iid", "batch_size": Adaptation().batch_size, "seed": trial.trial_seed}
    needs = {"batch_norm": False, "batch": 1, "source": "", "training": "", "changes": "the head", "predicts": "after"}
    for name, n in zip(ADAPTERS, range(len(ADAPTERS))):
        splits = {d: {s: rng.uniform(0.4, 0.8) for s in ("in", "out", "all")} for d in trial.test_domains}
        errors = {d: {s: rng.uniform(0.0, 0.3) for s in ("in", "out", "all")} for d in trial.test_domains}
        settings = {"lr": 1e-3 / (n + 1), "steps": 1, "episodic": False, "interventions": {"reset": rng.randrange(3)}}
        adapted = replace(best, adapter=name, accuracy=splits, adapter_hparams=settings, logs={}, calibration=errors)
        found.append(replace(adapted, needs=needs, stream=stream))
    return found


def write(options: Options, folder: Path) -> int:
    """Records in folders of trials, or in one file; gives their size."""
    left, kept = options.records, []
    for trial in trials():
        found = records_of(trial)[:left]
        left -= len(found)
        if options.one_file:
            kept += found
        else:
            (folder / trial.key).mkdir(parents=True)
            write_all(folder / trial.key / "records.jsonl", found)
            (folder / trial.key / "trial.json").write_text(json.dumps(trial.to_json()))
        if not left:
            break
    assert not left, "not so many records in this search"
    if options.one_file:
        folder.mkdir(parents=True)
        write_all(folder / "records.jsonl", kept)
    return sum(p.stat().st_size for p in folder.rglob("records.jsonl"))


def run(words: list[str]) -> Cost:
    """Seconds and peak memory of a command, which must succeed."""
    command = [sys.executable, "-c", WATCH, sys.executable, "-m", "itta", *words]
    seen = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    if seen["status"]:
        sys.exit(f"error: itta {' '.join(words)} failed.")
    return Cost(seen["seconds"], seen["cpu"], seen["rss"] / (1024 if sys.platform != "darwin" else 2**20))


def measure(options: Options, folder: Path) -> dict[str, Cost]:
    data = folder / "records"
    if not data.exists():
        size = write(options, data)
        print(f"{options.records} records made, {size / 2**20:.0f} MiB", file=sys.stderr)
    found = {}
    kinds = list(product(SELECTIONS, ("found",))) + [("training-domain", "multi-source")]
    for selection, table in track(kinds, "reports", console=Console(stderr=True), disable=options.json):
        words = ["report", str(data), "--selection", selection, "--table", table, "--format", "csv"]
        found[f"{selection}, {table}"] = run(words)
    return found


def main() -> None:
    options = tyro.cli(Options, prog="python -m benchmarks.report_scale", description=__doc__)
    with tempfile.TemporaryDirectory() as temporary:
        found = measure(options, options.folder or Path(temporary))
    if options.json:
        print(json.dumps({name: asdict(cost) for name, cost in found.items()}))
    else:
        table = Table("selection, table", "seconds", "at work", "MiB")
        for name, cost in found.items():
            table.add_row(name, f"{cost.seconds:.1f}", f"{cost.cpu:.1f}", f"{cost.mib:.0f}")
        Console().print(table)
    sys.exit(any(c.seconds > options.seconds or c.mib > options.mib for c in found.values()))


if __name__ == "__main__":
    main()
