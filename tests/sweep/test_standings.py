"""How a sweep stands, from states written by hand."""

import os
import socket
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from itta.run.status import State, read_state, write_state
from itta.settings import Adaptation
from itta.sweep.plan import Sweep
from itta.sweep.standings import SILENCE, count_standings, duration, standings

SWEEP = Sweep(
    {"photos": ("dawn", "noon", "night")},
    ("erm", "itta"),
    targets=("night",),
    hparams_seeds=2,
    trial_seeds=1,
    steps=100,
)
HERE = socket.gethostname()


@pytest.fixture
def dead() -> int:
    """The id of a process that is no more."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.fixture
def put(tmp_path: Path):
    """(number of the trial, state) -> written into its directory."""
    keys = [t.key for t in SWEEP.trials()]

    def write(number: int, state: State) -> None:
        (tmp_path / keys[number]).mkdir(exist_ok=True)
        write_state(tmp_path / keys[number], state)

    return write


def words(out: Path, sweep: Sweep = SWEEP) -> list[str]:
    return [s.word for s in standings(sweep, out)]


def test_there_and_back(tmp_path: Path) -> None:
    state = State("failed", 3, "training", "no memory", 2, 1.5, {"tent": 0.5, "ttt": "cannot"}, HERE, 12, 1.0)
    write_state(tmp_path, state)
    assert read_state(tmp_path) == state
    (tmp_path / "state.json").write_text("{")
    assert read_state(tmp_path) is None
    assert read_state(tmp_path / "nowhere") is None


def test_every_word(tmp_path: Path, put, dead: int) -> None:
    assert words(tmp_path) == ["waiting"] * 4
    put(0, State("done", 100))
    put(1, State("failed", 5, reason="loss is not finite"))
    put(2, State("running", 5, host=HERE, pid=os.getpid()))
    put(3, State("running", 5, host=HERE, pid=dead))
    assert words(tmp_path) == ["done", "failed", "running", "waiting"]


def test_another_machine_is_believed_while_it_speaks(tmp_path: Path, put, dead: int) -> None:
    put(0, State("running", 5, host=f"not {HERE}", pid=dead, time=time.time()))
    put(1, State("running", 5, host=f"not {HERE}", pid=dead, time=time.time() - SILENCE - 1))
    assert words(tmp_path)[:2] == ["running", "silent"]
    counted = count_standings(standings(SWEEP, tmp_path))
    assert (counted["running"], counted["silent"], counted["waiting"]) == (1, 1, 2)


def test_a_later_process_with_the_same_id_is_another_one(tmp_path: Path, put) -> None:
    mine = psutil.Process().create_time()
    put(0, State("running", 5, host=HERE, pid=os.getpid(), started=mine))
    put(1, State("running", 5, host=HERE, pid=os.getpid(), started=mine - 3600))
    assert words(tmp_path)[:2] == ["running", "waiting"]


def test_another_adapter_makes_a_trial_wait_again(tmp_path: Path, put) -> None:
    sweep = replace(SWEEP, adaptation=Adaptation(("source", "tent")))
    put(0, State("done", 100, adapted=dict.fromkeys(sweep.adaptation.labels, 1.0)))
    assert words(tmp_path, sweep)[0] == "done"
    others = (
        Adaptation(("tent", "t3a")),
        replace(sweep.adaptation, batch_size=1),
        replace(sweep.adaptation, at="last"),
    )
    for other in (*others, replace(sweep.adaptation, settings={"tent": {"lr": "1"}})):
        assert words(tmp_path, replace(sweep, adaptation=other))[0] == "waiting"
    assert words(tmp_path, replace(sweep, adaptation=Adaptation(("tent",))))[0] == "done"


def test_time_left_is_reckoned_from_what_is_done(tmp_path: Path, put) -> None:
    sweep = replace(SWEEP, adaptation=Adaptation(("t3a",)))
    (label,) = sweep.adaptation.labels
    assert count_standings(standings(sweep, tmp_path), 2)["seconds_left"] is None
    put(0, State("done", 100, train_seconds=60.0, adapted={label: 4.0}))  # erm
    found = count_standings(standings(sweep, tmp_path), 2)
    assert found["seconds_left"] == pytest.approx(3 * 64 / 2)  # of itta nothing is known yet
    put(2, State("done", 100, train_seconds=200.0, adapted={label: 8.0}))  # itta
    put(3, State("running", 75, host=HERE, pid=os.getpid()))
    found = count_standings(standings(sweep, tmp_path), 2)
    assert found["seconds_left"] == pytest.approx((60 + 6 + 0.25 * 200 + 6) / 2)
    assert count_standings(standings(sweep, tmp_path))["seconds_left"] == pytest.approx(60 + 6 + 0.25 * 200 + 6)
    put(1, State("done", 100, train_seconds=60.0))  # only to be adapted
    assert count_standings(standings(sweep, tmp_path), 1)["seconds_left"] == pytest.approx(6 + 0.25 * 200 + 6)


def test_summary(tmp_path: Path, put) -> None:
    put(0, State("done", 100, adapted={"tent at=best batch=32": "no batch normalisation", "t3a at=best batch=32": 1.0}))
    put(1, State("failed", 5, reason="loss is not finite", attempts=2))
    put(2, State("running", 50, "training", host=HERE, pid=os.getpid()))
    found = count_standings(standings(SWEEP, tmp_path))
    assert {w: found[w] for w in ("trials", "done", "running", "failed", "waiting")} == {
        "trials": 4, "done": 1, "running": 1, "failed": 1, "waiting": 1,
    }  # fmt: skip
    assert found["by_algorithm"] == {"erm": {"done": 1, "failed": 1}, "itta": {"running": 1, "waiting": 1}}
    (failed,) = found["reasons"]
    assert (failed["reason"], failed["attempts"], failed["hparams_seed"]) == ("loss is not finite", 2, 1)
    (running,) = found["running_now"]
    assert (running["step"], running["of"], running["doing"]) == (50, 100, "training")
    assert found["cannot"] == {"erm, tent: no batch normalisation": 1}


def test_in_words() -> None:
    assert [duration(s) for s in (0, 61, 7199.5)] == ["0 min", "2 min", "2 h 0 min"]
