"""What a sweep's launcher costs, and what a second slot gives.

The same sweep of the emoji styles is run with one slot and with two, each trial on one thread. Let the machine be
otherwise idle, and have two cores at least.

The launcher's own time is what its command takes beyond its workers, in the run with one slot, where at most one worker
is there at any moment: from the command to the start of the first worker's process, from the end of each to the start
of the next, and from the end of the last to the end of the command. A worker's time is that of its process, from its
start to its end, the import of torch included: that is the trial's own. Seen from outside, by a look at the processes a
hundred times a second. "alone" is the launcher's time in a sweep of one trial: its first part and its last. "each" is
what every further trial adds. Both are also told as shares of a trial of 60 seconds. "at work" is the launcher's CPU
time for each trial, which its workers do without.

Ends with status 1 if two slots give less than 1.7 times the trials per hour of one, or "alone" is more than 5 % of a
minute. Needs Linux, for the list of a process's children.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.sweep_kills import workers

LEAST_GAIN, MOST_OVERHEAD, MINUTE = 1.7, 0.05, 60.0
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Options:
    trials: int = 8  # of the sweep
    steps: int = 60  # of training in each
    backbone: str = "efficientnet_lite0"
    image_size: int = 32
    json: bool = False  # print one JSON object and nothing else


@dataclass(frozen=True)
class Watched:
    """A sweep as seen from outside; all in seconds."""

    wall: float  # the command, from start to end
    spans: list[tuple[float, float]]  # of every worker, counted from the start of the command
    cpu: float  # of the launcher itself

    @property
    def edges(self) -> float:
        """Before the first worker and after the last."""
        return min(a for a, _ in self.spans) + self.wall - max(b for _, b in self.spans)

    @property
    def between(self) -> float:
        """From a worker's end to the start of the next, where one follows another; mean."""
        spans = sorted(self.spans)
        return mean(b[0] - a[1] for a, b in zip(spans, spans[1:])) if len(spans) > 1 else 0.0


@dataclass(frozen=True)
class Found:
    trial: float  # seconds of a worker, mean, one slot
    one: float  # trials per hour
    two: float
    gain: float
    alone: float  # seconds
    each: float
    alone_share: float  # of a minute
    each_share: float
    work: float  # seconds of CPU for each trial

    @property
    def passed(self) -> bool:
        return self.gain >= LEAST_GAIN and self.alone_share <= MOST_OVERHEAD


def status(pid: int) -> list[str]:
    """The fields of a process after its name, from its state on; nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def watch(options: Options, slots: int, out: Path) -> Watched:
    words = (
        "sweep", "emoji", "--algorithms", "erm", "--targets", "noto-mono", "--adapters", "source", "--trial-seeds", "1",
        "--hparams-seeds", options.trials, "--steps", options.steps, "--eval-every", options.steps, "--backbone",
        options.backbone, "--weights", "none", "--image-size", options.image_size, "--set", "batch_size=8",
        "--threads", "1", "--slots", slots, "--out", out, "--json",
    )  # fmt: skip
    log = out.with_suffix(".txt")
    begun = time.monotonic()
    with open(log, "wb") as file:
        process = subprocess.Popen([sys.executable, "-m", "itta", *map(str, words)], stdout=file, stderr=file)
    spans: dict[int, tuple[float, float]] = {}
    cpu = 0.0
    while process.poll() is None:
        now = time.monotonic() - begun
        for pid in workers(process.pid):
            if status(pid)[:1] not in ([], ["Z"]):  # ended, but the launcher has not seen it yet
                spans[pid] = spans.get(pid, (now, now))[0], now
        fields = status(process.pid)
        cpu = (int(fields[11]) + int(fields[12])) / TICKS if len(fields) > 12 else cpu
        time.sleep(0.01)
    wall = time.monotonic() - begun
    if process.returncode or len(spans) != options.trials:
        sys.exit(f"error: the sweep failed, or its workers were not seen:\n{log.read_text(errors='replace')[-2000:]}")
    return Watched(wall, list(spans.values()), cpu)


def measure(options: Options, folder: Path) -> Found:
    one, two = (watch(options, slots, folder / str(slots)) for slots in (1, 2))
    hourly = [3600 * options.trials / w.wall for w in (one, two)]
    return Found(
        trial=mean(b - a for a, b in one.spans),
        one=hourly[0],
        two=hourly[1],
        gain=hourly[1] / hourly[0],
        alone=one.edges,
        each=one.between,
        alone_share=one.edges / MINUTE,
        each_share=one.between / MINUTE,
        work=one.cpu / options.trials,
    )


def main() -> None:
    options = tyro.cli(Options, prog="python -m benchmarks.sweep_speed", description=__doc__)
    with tempfile.TemporaryDirectory() as temporary:
        found = measure(options, Path(temporary))
    if options.json:
        print(json.dumps(asdict(found)))
    else:
        table = Table(f"{options.trials} trials of {found.trial:.1f} s", "")
        table.add_row("trials per hour, one slot", f"{found.one:.0f}")
        table.add_row("trials per hour, two slots", f"{found.two:.0f}")
        table.add_row("two slots give", f"{found.gain:.2f}×")
        table.add_row("launcher, alone", f"{found.alone:.2f} s, {found.alone_share:.1%} of a minute")
        table.add_row("launcher, each", f"{found.each:.2f} s, {found.each_share:.1%} of a minute")
        table.add_row("launcher, at work", f"{found.work:.2f} s for each trial")
        Console().print(table)
    sys.exit(not found.passed)


if __name__ == "__main__":
    main()
