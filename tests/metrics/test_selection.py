"""The three rules, on records written by hand and on DomainBed's own test sweep."""

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from itta.metrics.selection import best_of_search, choose_checkpoints, leave_one_domain_out, oracle, training_domain
from itta.records import Record
from itta.records.collection import Collection
from itta.records.domainbed import ENVIRONMENTS
from itta.report.cells import TableOptions
from itta.report.filled_layout import fill_layout
from itta.report.layouts import PAPER_TABLES
from itta.trial import Trial

TRIAL = Trial("toy", "erm", ("a", "b"), ("t",), steps=30)


def record(step: int, a: float, b: float, t_in: float, t_out: float, trial: Trial = TRIAL) -> Record:
    accuracy = {"a": {"out": a}, "b": {"out": b}, "t": {"in": t_in, "out": t_out}}
    return Record(trial, step, "source", accuracy)


def pair(step: int, left_out: str, accuracy: float, trial: Trial = TRIAL) -> Record:
    """A run that has left out one more domain."""
    sources = tuple(d for d in trial.train_domains if d != left_out)
    both = replace(trial, train_domains=sources, test_domains=("t", left_out))
    return Record(both, step, "source", {"t": {"in": 0.0}, left_out: {"in": accuracy}, sources[0]: {"out": 1.0}})


def test_training_domain_takes_the_best_mean_of_the_sources() -> None:
    own = [record(10, 0.9, 0.1, 0.1, 0.9), record(20, 0.6, 0.6, 0.2, 0.1), record(30, 0.7, 0.4, 0.9, 0.9)]
    choice = training_domain(own, [], "t")
    assert choice is not None
    assert (choice.record.step, choice.validation) == (20, pytest.approx(0.6))


def test_oracle_takes_the_last_checkpoint_however_good_an_earlier_one() -> None:
    own = [record(30, 0.1, 0.1, 0.5, 0.2), record(10, 0.9, 0.9, 0.9, 0.9)]
    choice = oracle(own, [], "t")
    assert choice is not None
    assert (choice.record.step, choice.validation) == (30, 0.2)


def test_leave_one_domain_out_goes_by_the_pairs_alone() -> None:
    own = [record(10, 0.1, 0.1, 0.3, 0.0), record(20, 0.9, 0.9, 0.8, 1.0)]
    pairs = [pair(10, "a", 0.6), pair(10, "b", 0.8), pair(20, "a", 0.9), pair(20, "b", 0.3)]
    choice = leave_one_domain_out(own, pairs, "t")
    assert choice is not None
    assert (choice.record.step, choice.validation) == (10, pytest.approx(0.7))


def test_leave_one_domain_out_needs_every_pair_at_a_step() -> None:
    own = [record(10, 0.5, 0.5, 0.5, 0.5), record(20, 0.5, 0.5, 0.5, 0.5)]
    pairs = [pair(10, "a", 0.1), pair(10, "b", 0.1), pair(20, "a", 0.9)]
    choice = leave_one_domain_out(own, pairs, "t")
    assert choice is not None
    assert choice.record.step == 10
    assert leave_one_domain_out(own, pairs[2:], "t") is None


def test_a_tie_goes_to_the_earlier_step_and_the_lower_seed() -> None:
    runs = [replace(TRIAL, hparams_seed=h) for h in (1, 0)]
    own = [record(step, 0.5, 0.5, 0.1, 0.1, trial) for trial in runs for step in (20, 10)]
    choices = choose_checkpoints(own, [], "t", training_domain)
    assert list(choices) == [(0, 0), (0, 1)]
    assert {c.record.step for c in choices.values()} == {10}
    assert best_of_search(choices)[0,].record.trial.hparams_seed == 0


def test_the_search_is_won_by_validation_within_each_trial_seed() -> None:
    values = {(0, 0): 0.5, (0, 1): 0.7, (1, 0): 0.9, (1, 1): 0.2}  # (trial seed, hparams seed) -> validation
    own = [record(10, v, v, 1 - v, 0.0, replace(TRIAL, trial_seed=t, hparams_seed=h)) for (t, h), v in values.items()]
    best = best_of_search(choose_checkpoints(own, [], "t", training_domain))
    assert {key: c.record.trial.hparams_seed for key, c in best.items()} == {(0,): 1, (1,): 0}


def test_runs_that_differ_in_something_else_do_not_hide_each_other() -> None:
    own = [record(10, v, v, 0.0, 0.0, replace(TRIAL, steps=s)) for s, v in ((30, 0.1), (40, 0.2), (50, 0.3))]
    assert list(choose_checkpoints(own, [], "t", training_domain)) == [(0, 0), (0, 0, 1), (0, 0, 2)]


def domainbed_sweep() -> list[Record]:
    """The file beside this one, as records."""
    names = ENVIRONMENTS["VLCS"]
    with open(Path(__file__).with_name("domainbed_sweep.csv"), encoding="utf-8") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    found = []
    for row in rows:
        targets = [names[int(c)] for c in row["targets"]]
        sources = [n for n in names if n not in targets]
        values = [float(row[c]) for c in "abcde" if row[c]]
        if len(targets) == 1:
            accuracy = {targets[0]: {"in": values[0], "out": values[1]}}
            accuracy |= {n: {"out": v} for n, v in zip(sources, values[2:])}
        else:
            accuracy = {n: {"in": v} for n, v in zip(targets, values)}
        seeds = int(row["hparams_seed"]), int(row["trial_seed"])
        trial = Trial("VLCS", "erm", tuple(sources), tuple(targets), *seeds, steps=1001)
        found.append(Record(trial, int(row["step"]), "source", accuracy))
    return found


DOMAINBEDS_TABLE = {  # what DomainBed prints for its sweep: domainbed/misc/test_sweep_results.txt
    "training-domain": [(98.0, 0.2), (64.2, 0.8), (74.1, 0.4), (77.1, 0.2), (78.3, 0.0)],
    "leave-one-domain-out": [(96.9, 1.0), (64.4, 0.9), (70.5, 0.5), (76.7, 0.1), (77.1, 0.1)],
    "oracle": [(96.9, 1.0), (65.9, 0.5), (71.6, 1.3), (76.9, 0.3), (77.8, 0.3)],
}


@pytest.mark.parametrize("rule", DOMAINBEDS_TABLE)
def test_domainbeds_own_sweep_gives_its_own_table(rule: str) -> None:
    sweep = domainbed_sweep()
    assert len(sweep) == 40 * 4
    filled = fill_layout(PAPER_TABLES["vlcs"], Collection(sweep), TableOptions(rule, split="in"))
    cells = filled.cells["ERM"].values()
    assert [(round(100 * c.mean, 1), round(100 * c.error, 1)) for c in cells] == DOMAINBEDS_TABLE[rule]
    assert {len(c.values) for c in cells} == {2}


@pytest.mark.parametrize("rule", DOMAINBEDS_TABLE)
def test_the_same_from_its_directories_by_the_commands(rule: str, tmp_path: Path, run_itta: Callable[..., str]) -> None:
    """What our copy of the sweep does not have, since no rule looks at it, is written as 0."""
    names = ENVIRONMENTS["VLCS"]
    for r in domainbed_sweep():
        args = {"dataset": "VLCS", "algorithm": "ERM", "steps": 1001, "hparams": None}
        args |= {"test_envs": [names.index(d) for d in r.trial.test_domains]}
        args |= {"hparams_seed": r.trial.hparams_seed, "trial_seed": r.trial.trial_seed}
        line = {
            f"env{i}_{s}_acc": r.accuracy.get(d, {}).get(s, 0.0) for i, d in enumerate(names) for s in ("in", "out")
        }
        run = tmp_path / "sweep" / r.trial.key
        run.mkdir(parents=True, exist_ok=True)
        (run / "done").write_text("done")
        with open(run / "results.jsonl", "a") as file:
            file.write(json.dumps({"args": args, "hparams": {}, "step": r.step, **line}) + "\n")
    assert "160 records" in run_itta("records", "import", tmp_path / "sweep", "--out", tmp_path / "records.jsonl")
    words = ("report", tmp_path / "records.jsonl", "--table", "vlcs", "--selection", rule, "--format", "csv")
    cells = [c for c in csv.DictReader(io.StringIO(run_itta(*words))) if c["row"] == "ERM"]
    assert [(round(float(c["mean"]), 1), round(float(c["error"]), 1)) for c in cells] == DOMAINBEDS_TABLE[rule]
