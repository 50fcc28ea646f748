"""How a sweep stands: what each trial wrote about itself, counted, and how long the rest will take."""

import json
import os
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from itta.records import replace_text
from itta.sweep.plan import Adaptation, Sweep
from itta.trial import Trial

FILE = "state.json"
SILENCE = 600.0  # seconds without a word after which a trial on another machine is given up for dead
Word = Literal["done", "running", "failed", "waiting"]


@dataclass(frozen=True)
class State:
    """What a trial last wrote about itself, in its own directory."""

    word: Word
    step: int = 0
    doing: str = ""
    reason: str = ""  # why it failed
    attempts: int = 1  # how often it was started
    train_seconds: float = 0.0
    adapted: Mapping[str, float | str] = field(default_factory=dict)  # evaluation -> seconds, or why it cannot be
    host: str = ""
    pid: int = 0
    time: float = 0.0


def write_state(out: Path, state: State) -> None:
    replace_text(out / FILE, json.dumps(asdict(state), indent=2) + "\n")


def read_state(out: Path) -> State | None:
    """The state in a trial's directory; one that is not there or damaged counts as none."""
    try:
        return State(**json.loads((out / FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def alive(state: State) -> bool:
    """Whether the process that wrote a state is still there; of another machine, whether it spoke lately."""
    if state.host != socket.gethostname():
        return time.time() - state.time < SILENCE
    try:
        os.kill(state.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@dataclass(frozen=True)
class Standing:
    """A trial of a sweep and how it stands."""

    trial: Trial
    word: Word
    state: State | None
    missing: tuple[str, ...] = ()  # evaluations that are asked for and not there


def stand(trial: Trial, out: Path, adaptation: Adaptation) -> Standing:
    """What is asked for counts: a trial that was done waits again if another adapter is wanted."""
    state = read_state(out)
    missing = tuple(label for label in adaptation.labels if state is None or label not in state.adapted)
    if state is None:
        return Standing(trial, "waiting", None, missing)
    if state.word == "running":
        return Standing(trial, "running" if alive(state) else "waiting", state, missing)
    if state.word == "done" and missing:
        return Standing(trial, "waiting", state, missing)
    return Standing(trial, state.word, state, missing)


def standings(sweep: Sweep, out: Path) -> list[Standing]:
    return [stand(t, out / t.key, sweep.adaptation_of(t)) for t in sweep.trials()]


@dataclass(frozen=True)
class Costs:
    """Mean seconds of what is finished: trainings by algorithm and data set, evaluations by what they are."""

    train: Mapping[tuple[str, ...], float]
    adapt: Mapping[str, float]

    def of(self, standing: Standing) -> float | None:
        """Seconds that a trial still needs; nothing if no training like it has been finished."""
        trial, state = standing.trial, standing.state
        to_train = 1 - (state.step if state else 0) / trial.steps
        found = [self.train[k] for k in ((trial.algorithm, trial.dataset), (trial.algorithm,), ()) if k in self.train]
        if to_train > 0 and not found:
            return None
        return to_train * (found[0] if found else 0.0) + sum(self.adapt.get(label, 0.0) for label in standing.missing)


def costs(found: Sequence[Standing]) -> Costs:
    train: dict[tuple[str, ...], list[float]] = defaultdict(list)
    adapt: dict[str, list[float]] = defaultdict(list)
    for s in found:
        if s.state is None:
            continue
        if s.state.step == s.trial.steps and s.state.train_seconds:
            for kind in ((s.trial.algorithm, s.trial.dataset), (s.trial.algorithm,), ()):
                train[kind].append(s.state.train_seconds)
        for label, seconds in s.state.adapted.items():
            if isinstance(seconds, float):
                adapt[label].append(seconds)
    return Costs({k: mean(v) for k, v in train.items()}, {k: mean(v) for k, v in adapt.items()})


def seconds_left(found: Sequence[Standing], slots: int) -> float | None:
    """How long the rest will take, by what the finished trials took; nothing if that is not known yet."""
    known = costs(found)
    needed = [known.of(s) for s in found if s.word in ("waiting", "running")]
    if None in needed:
        return None
    return sum(n for n in needed if n is not None) / max(1, slots)


def summarise(found: Sequence[Standing], slots: int | None = None) -> dict[str, Any]:
    """Counts, reasons and time left as plain values; not told, as many slots as trials are running."""
    counts = Counter(s.word for s in found)
    running = [s for s in found if s.word == "running"]
    failed = [s for s in found if s.word == "failed"]
    impossible = Counter(
        f"{s.trial.algorithm}, {label.split()[0]}: {why}"
        for s in found
        for label, why in (s.state.adapted.items() if s.state else ())
        if isinstance(why, str)
    )
    return {
        "trials": len(found),
        **{word: counts[word] for word in ("done", "running", "failed", "waiting")},
        "seconds_left": seconds_left(found, slots or len(running)),
        "running_now": [
            {"trial": s.trial.key, **where(s.trial), "step": s.state.step, "of": s.trial.steps, "doing": s.state.doing}
            for s in running
            if s.state
        ],
        "reasons": [
            {"trial": s.trial.key, **where(s.trial), "reason": s.state.reason, "attempts": s.state.attempts}
            for s in failed
            if s.state
        ],
        "cannot": dict(impossible),
        "by_algorithm": {
            a: dict(Counter(s.word for s in found if s.trial.algorithm == a))
            for a in dict.fromkeys(s.trial.algorithm for s in found)
        },
    }


def where(trial: Trial) -> dict[str, Any]:
    return {
        "dataset": trial.dataset,
        "algorithm": trial.algorithm,
        "sources": list(trial.train_domains),
        "targets": list(trial.test_domains),
        "hparams_seed": trial.hparams_seed,
        "trial_seed": trial.trial_seed,
    }


def in_words(seconds: float | None) -> str:
    """
    >>> in_words(59), in_words(3600 * 30 + 60), in_words(None)
    ('1 min', '30 h 1 min', 'unknown until a trial is done')
    """
    if seconds is None:
        return "unknown until a trial is done"
    hours, minutes = divmod(-(-int(seconds) // 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
