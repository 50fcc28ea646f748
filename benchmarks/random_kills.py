"""Do train, sweep, tune and export survive SIGKILL at random moments? The same command again must end as if in peace.

Each verb first runs in peace on a tiny model. Then it runs again elsewhere and is killed at random moments; the same
command is started again until it ends. Its results must be those of the run in peace, byte for byte: weights,
descriptions, records, logs of steps, the choice of tune, and the answers of the exported program. Of a sweep, the
launcher or one of its workers is killed. Ends with status 1 if something differs.

Only processes that this script started are killed, by their id. Needs Linux, for the list of a process's children.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import tyro

from benchmarks.sweep_kills import workers

TINY = (
    "--backbone", "small_cnn", "--weights", "none", "--image-size", "16", "--threads", "1", "--set", "batch_size=8",
)  # fmt: skip
SHARES = {"train": 0.3, "sweep": 0.3, "tune": 0.25, "export": 0.15}  # of the kills
STARTS = 30  # of one command after its last kill, before this script gives up
COMPARED = ("model.safetensors", "model.json", "records.jsonl", "steps.jsonl", "adapter.json")


@dataclass(frozen=True)
class Options:
    kills: int = 50  # SIGKILLs in all
    seed: int = 0  # of the moments and the victims
    steps: int = 60  # of each training
    data: str = "emoji"
    target: str = "noto-mono"
    folder: Path | None = None  # to work in; a temporary one if not given
    json: bool = False  # print one JSON object and nothing else


@dataclass
class Found:
    kills: dict[str, int] = field(default_factory=dict)  # by verb
    compared: dict[str, int] = field(default_factory=dict)  # runs that ended, by verb
    files: int = 0  # compared byte for byte
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)  # what differs; nothing is as it should be


def commands(options: Options, model: Path) -> dict[str, Callable[[Path], list[str]]]:
    """Return the words of each verb for an output folder; tune and export work on a copy of the model there."""
    steps = ("--steps", str(options.steps), "--eval-every", "5")
    train = ("train", options.data, "--target", options.target, *TINY, *steps, "--algorithm", "erm")
    search = ("--algorithms", "erm", "--targets", options.target, "--hparams-seeds", "2", "--trial-seeds", "1")
    sweep = ("sweep", options.data, *TINY, *steps, *search, "--adapters", "t3a", "--slots", "1", "--json")
    return {
        "train": lambda out: [*train, "--no-page", "--no-stand-ins", "--json", "--out", str(out)],
        "sweep": lambda out: [*sweep, "--out", str(out)],
        "tune": lambda out: ["tune", str(out / "model"), "--adapter", "t3a", "--threads", "1", "--json"],
        "export": lambda out: ["export", str(out / "model"), "--torch", str(out / "m.pt2"), "--threads", "1", "--json"],
    }


def prepare(verb: str, out: Path, model: Path) -> None:
    """Make the folder of a run; a killed export or tune finds its model there."""
    if verb in ("tune", "export"):
        shutil.copytree(model, out / "model")


def start(words: list[str], log: Path) -> "subprocess.Popen[bytes]":
    with open(log, "ab") as file:
        command = [sys.executable, "-m", "itta", *words]
        return subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL)


def finish(words: list[str], log: Path) -> None:
    """Run a command to its end; a sweep may need several starts if workers were killed."""
    for _ in range(STARTS):
        if start(words, log).wait() == 0:
            return
    raise SystemExit(f"itta {' '.join(words)} did not end well in {STARTS} starts: see {log}")


def results(verb: str, out: Path) -> dict[str, bytes]:
    """Return what a run left behind: files by name, and of an exported program its answers."""
    found = {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.name in COMPARED}
    if verb == "export":
        import torch

        from itta.store.export import load_torch

        images = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        found["answers of m.pt2"] = load_torch(out / "m.pt2")(images).numpy().tobytes()
    return found


def disturb(
    verb: str,
    words: Callable[[Path], list[str]],
    place: Path,
    model: Path,
    kills: int,
    seconds: float,
    rng: random.Random,
) -> tuple[int, list[Path]]:
    """Kill a verb at random moments; return how often, and the folders of the runs that ended."""
    done, ended, number = 0, list[Path](), 0
    while done < kills:
        out = place / f"{verb}-{number}"
        prepare(verb, out, model)
        while done < kills:
            process, started = start(words(out), place / f"{verb}.log"), time.monotonic()
            with suppress(subprocess.TimeoutExpired):
                process.wait(rng.uniform(0.3, 1.1) * seconds)
            if process.poll() == 0:
                seconds = min(seconds, time.monotonic() - started)  # the machine is less busy than it was
                break
            if process.poll() is None:
                others = workers(process.pid) if verb == "sweep" else []
                victim = rng.choice(others) if others and rng.random() < 0.5 else process.pid
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    done += 1
                process.wait()  # after the death of a worker the sweep goes on
                wait_for(others)
        finish(words(out), place / f"{verb}.log")
        ended.append(out)
        number += 1
    return done, ended


def wait_for(processes: list[int]) -> None:
    """Wait until the workers of a killed launcher have ended; they notice that it is gone."""
    for _ in range(600):
        if not any(Path(f"/proc/{p}/stat").exists() for p in processes):
            return
        time.sleep(0.05)


def measure(options: Options, folder: Path) -> Found:
    """Run each verb in peace and disturbed, and compare."""
    found, rng, begun = Found(), random.Random(options.seed), time.monotonic()
    model = folder / "model"
    verbs = commands(options, model)
    left = options.kills
    for i, (verb, words) in enumerate(verbs.items()):
        peace = model if verb == "train" else folder / f"{verb}-peace"  # tune and export use the model
        prepare(verb, peace, model)
        started = time.monotonic()
        finish(words(peace), folder / f"{verb}.log")
        seconds = time.monotonic() - started
        kills = left if i == len(verbs) - 1 else round(options.kills * SHARES[verb])
        left -= kills
        found.kills[verb], ended = disturb(verb, words, folder, model, kills, seconds, rng)
        found.compared[verb] = len(ended)
        expected = results(verb, peace)
        for out in ended:
            got = results(verb, out)
            found.files += len(got)
            names = dict.fromkeys([*expected, *got])
            found.wrong += [f"{out.name}/{name} differs" for name in names if expected.get(name) != got.get(name)]
        if not options.json:
            print(
                f"{verb}: {found.kills[verb]} kills, {len(ended)} runs ended, {len(expected)} results each", flush=True
            )
    found.seconds = time.monotonic() - begun
    return found


def main(options: Options) -> int:
    """Measure, print, and tell by the status whether all is well."""
    with tempfile.TemporaryDirectory() as temporary:
        found = measure(options, options.folder or Path(temporary))
    if options.json:
        print(json.dumps(asdict(found), indent=2))
    else:
        print(f"{sum(found.kills.values())} kills, {found.files} results compared in {found.seconds:.0f} s")
        print("all the same" if not found.wrong else "\n".join(found.wrong))
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
