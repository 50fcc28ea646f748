"""A sweep in DomainBed's format, written by hand, and the tables that follow from it, worked out by hand.

From the command that imports it to the table that is printed. ColoredMNIST has three environments, so a target has two
sources, and leave-one-domain-out needs two pairs for each.
"""

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

NAMES = ("+90%", "+80%", "-90%")  # environments 0, 1, 2

# algorithm, test environments, hparams seed, trial seed: then for each checkpoint its step, and accuracies in percent,
# in/out of environments 0, 1 and 2. What no rule looks at is 99, so that a rule which does is found out.
SWEEP = """
ERM 0 h0 t0:   100 50/52 99/80 99/60   200 60/40 99/70 99/60
ERM 0 h1 t0:   100 30/90 99/50 99/50   200 70/41 99/90 99/48
ERM 0 h0 t1:   100 40/10 99/60 99/60   200 44/20 99/61 99/61
ERM 0 h1 t1:   100 80/30 99/50 99/62                             not done
ERM 0 h0 t2:   100 20/50 99/90 99/10   200 10/60 99/20 99/70

ERM 0+1 h0 t0: 100 70/99 40/99 99/99   200 30/99 60/99 99/99
ERM 0+2 h0 t0: 100 99/99 99/99 50/99   200 99/99 99/99 40/99
ERM 0+1 h1 t0: 100 10/99 10/99 99/99   200 10/99 99/99 99/99
ERM 0+2 h1 t0: 100 99/99 99/99 95/99
ERM 0+1 h0 t1: 100 40/99 30/99 99/99   200 40/99 20/99 99/99
ERM 0+2 h0 t1: 100 99/99 99/99 10/99   200 99/99 99/99 30/99
ERM 0+1 h1 t1: 100 40/99 24/99 99/99
ERM 0+2 h1 t1: 100 99/99 99/99 24/99
ERM 0+1 h0 t2: 100 50/99 50/99 99/99   200 50/99 50/99 99/99

ERM 1 h0 t0:   100 99/50 90/90 99/50   200 99/60 80/70 99/50
ERM 1 h0 t1:   100 99/40 70/10 99/40   200 99/40 60/20 99/40
ERM 1+2 h0 t0: 100 99/99 99/99 20/99   200 99/99 99/99 50/99

IRM 0 h0 t0:   200 10/10 99/50 99/50
IRM 1 h0 t0:   200 99/50 20/10 99/50
IRM 2 h0 t0:   200 99/50 99/50 33/10
"""
# Missing, then: the last checkpoint of a run that was never done; a whole run of the search (ERM 0 h1 t2); a checkpoint
# of a pair (0+2 h1 t0 at 200); a pair (0+2 of t2, 1+2 of t1); a trial seed (ERM 1 has no t2); a target (ERM has no 2).

# training-domain: the mean of the sources' out, over all checkpoints of all draws.
#   target 0   t0: h0 70, 65; h1 50, 69 → h0 at 100 → 50.  t1: h0 60, 61; h1 56 → h0 at 200 → 44.  t2: 50, 45 → 20.
#              50 44 20: mean 38; deviations 12, 6, −18; (144 + 36 + 324) / 3 = 168; √(168 / 3) = √56
#   target 1   t0: 50, 55 → at 200 → 80.  t1: 40, 40, a tie → the earlier, at 100 → 70.  Mean 75, error 5 / √2
# oracle: the last checkpoint there is; the target's out over the draws.
#   target 0   t0: h0 40, h1 41 → h1 → 70.  t1: h0 20, h1 30, which stopped at 100 → h1 → 80.  t2: 10.
#              70 80 10: mean 160/3; squares of 50/3, 80/3, −130/3 make 8600/3; √(8600 / 27)
#   target 1   80 and 60: mean 70, error 10 / √2
# leave-one-domain-out: at each step the mean of the pairs' in on the other environment left out.
#   target 0   t0: h0 at 100 (40 + 50) / 2 = 45, at 200 (60 + 40) / 2 = 50; h1 at 100 (10 + 95) / 2 = 52.5, a pair
#              at 200 is missing → h1 at 100 → 30.  t1: h0 20, 25; h1 24 → h0 at 200 → 44.  t2: a pair is missing.
#              30 44: mean 37, error 7 / √2
#   target 1   t0: at 100 (70 + 20) / 2 = 45, at 200 (30 + 50) / 2 = 40 → at 100 → 90.  t1: a pair is missing.
# IRM has one trial of everything, and no pairs. An average needs every target.
EXPECTED = {
    "training-domain": {
        ("erm", 0): (38.0, 56**0.5, 3),
        ("erm", 1): (75.0, 5 / 2**0.5, 2),
        ("irm", 0): (10.0, 0.0, 1),
        ("irm", 1): (20.0, 0.0, 1),
        ("irm", 2): (33.0, 0.0, 1),
        ("irm", "Avg."): (21.0, 0.0, 1),
    },
    "oracle": {
        ("erm", 0): (160 / 3, (8600 / 27) ** 0.5, 3),
        ("erm", 1): (70.0, 10 / 2**0.5, 2),
        ("irm", 0): (10.0, 0.0, 1),
        ("irm", 1): (20.0, 0.0, 1),
        ("irm", 2): (33.0, 0.0, 1),
        ("irm", "Avg."): (21.0, 0.0, 1),
    },
    "leave-one-domain-out": {("erm", 0): (37.0, 7 / 2**0.5, 2), ("erm", 1): (90.0, 0.0, 1)},
}
MISSING = {
    "training-domain": {("erm", 2): "not run", ("erm", "Avg."): "1 of 3 missing"},
    "oracle": {("erm", 2): "not run", ("erm", "Avg."): "1 of 3 missing"},
    "leave-one-domain-out": {
        ("erm", 2): "not run",
        ("erm", "Avg."): "1 of 3 missing",
        **{("irm", c): "no pair runs" for c in (0, 1, 2, "Avg.")},
    },
}


def write_sweep(folder: Path) -> None:
    for number, line in enumerate(filter(None, SWEEP.splitlines())):
        who, _, measured = line.partition(":")
        algorithm, envs, h, t = who.split()
        args = {
            "algorithm": algorithm,
            "dataset": "ColoredMNIST",
            "test_envs": [int(e) for e in envs.split("+")],
            "hparams_seed": int(h[1:]),
            "trial_seed": int(t[1:]),
            "steps": 201,
            "hparams": None,
        }
        run = folder / f"{number:02}"
        run.mkdir(parents=True)
        with open(run / "results.jsonl", "w") as file:
            for step, *pairs in re.findall(r"(\d+) (\d+)/(\d+) (\d+)/(\d+) (\d+)/(\d+)", measured):
                keys = [f"env{i}_{split}_acc" for i in range(3) for split in ("in", "out")]
                accuracies = {key: int(value) / 100 for key, value in zip(keys, pairs)}
                file.write(json.dumps({"args": args, "hparams": {}, "step": int(step), **accuracies}) + "\n")
        if "not done" not in measured:
            (run / "done").write_text("done")


@pytest.fixture
def imported(tmp_path: Path, run_itta: Callable[..., str]) -> Path:
    write_sweep(tmp_path / "sweep")
    for name in ("never-began", "crashed"):
        (tmp_path / "sweep" / name).mkdir()
    (tmp_path / "sweep" / "crashed" / "err.txt").write_text("CUDA out of memory")
    told = json.loads(run_itta("records", "import", tmp_path / "sweep", "--out", tmp_path / "records.jsonl", "--json"))
    assert told["records"] == 9 + 15 + 6 + 3
    assert told["notes"] == {
        "runs without a file done: unfinished, or failed": 1,
        "runs without results: they failed before their first checkpoint": 1,
    }
    return tmp_path / "records.jsonl"


@pytest.mark.parametrize("rule", EXPECTED)
def test_the_table_is_the_one_worked_out_by_hand(imported: Path, run_itta: Callable[..., str], rule: str) -> None:
    rows = list(csv.DictReader(io.StringIO(run_itta("report", imported, "--selection", rule, "--format", "csv"))))
    where: dict[str, int | str] = {name: i for i, name in enumerate(NAMES)}
    found = {(r["row"], where.get(r["column"], r["column"])): r for r in rows}
    assert found.keys() == EXPECTED[rule].keys() | MISSING[rule].keys()
    for place, (mean, error, n) in EXPECTED[rule].items():
        cell = found[place]
        assert (float(cell["mean"]), float(cell["error"])) == pytest.approx((mean, error)), place
        assert (int(cell["n"]), cell["missing"]) == (n, ""), place
    for place, reason in MISSING[rule].items():
        assert (found[place]["mean"], found[place]["missing"]) == ("", reason), place


def test_what_is_missing_is_told(imported: Path, run_itta: Callable[..., str]) -> None:
    text = run_itta("report", imported)
    assert "75.0 ± 3.5 (n=2)" in text
    assert "1 of the runs stopped before their last step; they count as they are" in text
    assert "over n = 3 trial seeds" in text
    loo = run_itta("report", imported, "--selection", "leave-one-domain-out")
    assert "37.0 ± 4.9" in loo
    assert "leave-one-domain-out needs runs that leave out each source domain too" in loo
