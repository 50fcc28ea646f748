"""Does a sweep survive SIGKILL? Workers and the launcher itself, at random moments, and the same command again.

One sweep of the emoji styles is left in peace. The same sweep is then run again elsewhere, and each time a random
moment has passed, one of its processes is killed: one of the workers, or the launcher. A launcher that was killed, or
that gave up a trial whose worker was killed too often, is started again by the same command. After the last kill it is
left alone until it is done. Then every trial must be there with the records of the sweep in peace, byte for byte, and
so must the tables: nothing lost, nothing twice, no number moved. Ends with status 1 if that is not so.

Only processes that this script started are killed, by their id. Needs Linux, for the list of a process's children.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import tyro

SMALL = (
    "--backbone", "small_cnn", "--weights", "none", "--image-size", "16", "--set", "batch_size=8", "--steps", "6",
    "--eval-every", "2", "--adapters", "source", "t3a", "--targets", "twemoji", "noto-mono", "--algorithms", "erm",
    "coral", "--threads", "1",
)  # fmt: skip
TABLES = (  # flags of itta report
    ("--format", "csv"),
    ("--selection", "oracle", "--format", "csv"),
    ("--over", "trials", "--format", "csv"),
    ("--compare", "erm"),
)
STARTS = 20  # of the launcher after the last kill, before this script gives up


@dataclass(frozen=True)
class Options:
    trials: int = 24  # of the sweep; a multiple of 4: two methods, two targets
    kills: int = 10  # SIGKILLs
    slots: int = 2  # workers at a time
    seed: int = 0  # of the moments and the victims
    folder: Path | None = None  # to work in; a temporary one if not given
    json: bool = False  # print one JSON object and nothing else


@dataclass
class Found:
    trials: int
    kills: list[str] = field(default_factory=list)  # "worker" or "launcher", in order
    starts: int = 0  # of the launcher in the sweep that was disturbed
    resumed: int = 0  # attempts at trials beyond the first
    seconds: tuple[float, float] = (0.0, 0.0)  # of the sweep in peace, and of the other
    wrong: list[str] = field(default_factory=list)  # what differs; nothing is as it should be

    @property
    def passed(self) -> bool:
        return not self.wrong


def command(options: Options, out: Path) -> list[str]:
    seeds = 1 if options.trials % 8 else 2
    search = ("--hparams-seeds", str(options.trials // 4 // seeds), "--trial-seeds", str(seeds))
    words = ("sweep", "emoji", *SMALL, *search, "--slots", str(options.slots), "--out", str(out), "--json")
    return [sys.executable, "-m", "itta", *words]


def start(words: list[str], log: Path) -> "subprocess.Popen[bytes]":
    with open(log, "ab") as file:
        return subprocess.Popen(words, stdout=file, stderr=file, stdin=subprocess.DEVNULL)


def workers(launcher: int) -> list[int]:
    """The ids of a launcher's workers: its children, but for the one that multiprocessing keeps for itself."""
    try:
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    except FileNotFoundError:
        return []
    return [int(pid) for pid in children if b"spawn_main" in words_of(int(pid))]


def words_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has just ended
        return b""


def disturb(options: Options, out: Path, log: Path, span: float, found: Found) -> None:
    """Run the sweep, killing something every now and then; ``span`` is how long it takes in peace."""
    rng = random.Random(options.seed)
    victims = ["worker", "launcher"] * options.kills
    rng.shuffle(victims := victims[: options.kills])
    words = command(options, out)
    process = start(words, log)
    found.starts = 1
    while len(found.kills) < options.kills:
        wait = rng.uniform(0.1, 1.2) * span / (options.kills + 1)
        who = victims[len(found.kills)]
        pick = rng.random()
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.01)
        if process.poll() is not None:  # done, or it gave up a trial that was killed too often
            if process.returncode == 0:
                found.wrong.append(f"the sweep was over after {len(found.kills)} kills: take more trials")
                return
        elif who == "worker":
            here = workers(process.pid)
            if not here:  # between two trials, or still starting
                continue
            os.kill(here[int(pick * len(here))], signal.SIGKILL)
            found.kills.append("worker")
            continue
        else:
            orphans = workers(process.pid)
            process.kill()
            process.wait()
            found.kills.append("launcher")
            found.wrong += [f"a worker outlived its launcher: {pid}" for pid in orphans if not gone(pid, 10.0)]
        process = start(words, log)
        found.starts += 1
    for _ in range(STARTS):
        if process.wait() == 0:
            return
        process = start(words, log)
        found.starts += 1
    process.kill()
    found.wrong.append(f"not done after {STARTS} more starts: {log.read_text(errors='replace')[-500:]}")


def gone(pid: int, patience: float) -> bool:
    """Whether one of our workers has ended, or does so soon."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if b"spawn_main" not in words_of(pid):
            return True
        time.sleep(0.02)
    return False


def tables(out: Path) -> list[str]:
    printed = []
    for flags in TABLES:
        words = [sys.executable, "-m", "itta", "report", str(out), *flags]
        printed.append(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return printed


def compare(peace: Path, other: Path, found: Found) -> None:
    """What differs between the two sweeps."""
    ours, theirs = ({p.name: p for p in out.iterdir() if p.is_dir()} for out in (peace, other))
    if len(ours) != found.trials or ours.keys() != theirs.keys():
        found.wrong.append(f"{len(ours)} trials in peace, {len(theirs)} after kills, {found.trials} asked for")
    for key in ours.keys() & theirs.keys():
        state = json.loads((theirs[key] / "state.json").read_text())
        found.resumed += state["attempts"] - 1
        if state["word"] != "done":
            found.wrong.append(f"{key} is {state['word']}: {state['reason']}")
        for name in ("records.jsonl", "steps.jsonl", "model.safetensors"):
            if (ours[key] / name).read_bytes() != (theirs[key] / name).read_bytes():
                found.wrong.append(f"{key}/{name} differs")
        lines = (theirs[key] / "records.jsonl").read_bytes().splitlines()
        if len(set(lines)) != len(lines):
            found.wrong.append(f"{key}: a record is there twice")
    for flags, a, b in zip(TABLES, tables(peace), tables(other)):
        if a != b:
            found.wrong.append(f"itta report {' '.join(flags)} differs")


def measure(options: Options, folder: Path) -> Found:
    if options.trials < 4 or options.trials % 4:
        sys.exit(f"error: --trials must be a multiple of 4, got {options.trials}.")
    found = Found(options.trials)
    peace, other, log = folder / "peace", folder / "killed", folder / "log.txt"
    begun = time.monotonic()
    if start(command(options, peace), log).wait():
        sys.exit(f"error: the sweep in peace failed:\n{log.read_text(errors='replace')[-2000:]}")
    span = time.monotonic() - begun
    disturb(options, other, log, span, found)
    found.seconds = (span, time.monotonic() - begun - span)
    compare(peace, other, found)
    return found


def main() -> None:
    options = tyro.cli(Options, prog="python -m benchmarks.sweep_kills", description=__doc__)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = measure(options, folder)
    if options.json:
        print(json.dumps(asdict(found)))
    else:
        kinds = ", ".join(f"{found.kills.count(kind)} of a {kind}" for kind in ("worker", "launcher"))
        print(f"{found.trials} trials, {len(found.kills)} kills ({kinds}), {found.starts} starts of the launcher")
        peace, other = found.seconds
        print(f"{found.resumed} times a trial was taken up again; {peace:.0f} s in peace, {other:.0f} s with kills")
        print("\n".join(found.wrong) or "records, models and tables are the same, byte for byte")
    sys.exit(not found.passed)


if __name__ == "__main__":
    main()
