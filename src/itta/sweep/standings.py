"""How a sweep stands: the states of its trials, counted, and how long the rest will take."""

import socket
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, get_args

from itta.run.status import State, Word, read_state
from itta.settings import Adaptation
from itta.sweep.elsewhere import is_done, read_elsewhere
from itta.sweep.plan import Sweep
from itta.trial import Trial

SILENCE = 600.0  # seconds after which a trial on another machine that writes no state is called silent
START_TOLERANCE = 1.0  # seconds: the clock of the start times is coarse


def progress_of(state: State) -> Word:
    """Tell whether the process that wrote "running" still runs: running, waiting (it died), or silent.

    Silent is a trial on another machine that has written no state for a while: its process cannot be asked.
    """
    if state.host != socket.gethostname():
        return "running" if time.time() - state.time < SILENCE else "silent"
    return "running" if is_process(state.pid, state.started) else "waiting"


def is_process(pid: int, started: float) -> bool:
    """Tell whether a process of this machine runs; a later process with the same id is another one."""
    import psutil

    try:
        process = psutil.Process(pid)
        return not started or abs(process.create_time() - started) < START_TOLERANCE
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


@dataclass(frozen=True)
class Standing:
    """A trial of a sweep and how it stands."""

    trial: Trial
    word: Word
    state: State | None
    missing: tuple[str, ...] = ()  # evaluations that are wanted and not done


def stand(trial: Trial, out: Path, adaptation: Adaptation) -> Standing:
    """Compare a trial with what is wanted: one that was done waits again if another adapter is wanted."""
    state = read_state(out)
    missing = tuple(label for label in adaptation.labels if state is None or label not in state.adapted)
    if state is None:
        return Standing(trial, "waiting", None, missing)
    if state.word == "running":
        return Standing(trial, progress_of(state), state, missing)
    if state.word == "done" and missing:
        return Standing(trial, "waiting", state, missing)
    return Standing(trial, state.word, state, missing)


def standings(sweep: Sweep, out: Path) -> list[Standing]:
    """List every trial of a sweep and how it stands. A trial that ran elsewhere is done, and has no state here."""
    recorded = read_elsewhere(sweep.elsewhere)

    def standing(trial: Trial) -> Standing:
        asked = sweep.adaptation_of(trial)
        return (
            Standing(trial, "done", None) if is_done(trial, recorded, asked) else stand(trial, out / trial.key, asked)
        )

    return [standing(trial) for trial in sweep.trials()]


@dataclass(frozen=True)
class Costs:
    """Mean seconds of finished work: trainings by algorithm and data set, evaluations by name."""

    train: Mapping[tuple[str, ...], float]
    adapt: Mapping[str, float]

    def of(self, standing: Standing) -> float | None:
        """Estimate the seconds that a trial still needs; None if no training like it is finished."""
        trial, state = standing.trial, standing.state
        to_train = 1 - (state.step if state else 0) / trial.steps
        found = [self.train[k] for k in ((trial.algorithm, trial.dataset), (trial.algorithm,), ()) if k in self.train]
        if to_train > 0 and not found:
            return None
        return to_train * (found[0] if found else 0.0) + sum(self.adapt.get(label, 0.0) for label in standing.missing)


def mean_costs(found: Sequence[Standing]) -> Costs:
    """Average the time of what is finished."""
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
    """Estimate how long the rest will take, from finished trials; None if none is finished."""
    known = mean_costs(found)
    needed = [known.of(s) for s in found if s.word in ("waiting", "running", "silent")]
    if None in needed:
        return None
    return sum(n for n in needed if n is not None) / max(1, slots)


def count_standings(found: Sequence[Standing], slots: int | None = None) -> dict[str, Any]:
    """Return counts, reasons and time left as plain values; without ``slots``, one for each running trial."""
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
        **{word: counts[word] for word in get_args(Word)},
        "seconds_left": seconds_left(found, slots or len(running)),
        "running_now": [
            {
                "trial": s.trial.key,
                **identify(s.trial),
                "step": s.state.step,
                "of": s.trial.steps,
                "doing": s.state.doing,
            }
            for s in running
            if s.state
        ],
        "reasons": [
            {"trial": s.trial.key, **identify(s.trial), "reason": s.state.reason, "attempts": s.state.attempts}
            for s in failed
            if s.state
        ],
        "cannot": dict(impossible),
        "by_algorithm": {
            a: dict(Counter(s.word for s in found if s.trial.algorithm == a))
            for a in dict.fromkeys(s.trial.algorithm for s in found)
        },
    }


def identify(trial: Trial) -> dict[str, Any]:
    """Name a trial by its data, its method, its domains and its seeds."""
    return {
        "dataset": trial.dataset,
        "algorithm": trial.algorithm,
        "sources": list(trial.train_domains),
        "targets": list(trial.test_domains),
        "hparams_seed": trial.hparams_seed,
        "trial_seed": trial.trial_seed,
    }


def duration(seconds: float | None) -> str:
    """Write seconds as hours and minutes.

    >>> duration(59), duration(3600 * 30 + 60), duration(None)
    ('1 min', '30 h 1 min', 'unknown until a trial is done')
    """
    if seconds is None:
        return "unknown until a trial is done"
    hours, minutes = divmod(-(-int(seconds) // 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
