"""Which trials a sweep has; what they are called, and how they are seeded."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from itta.errors import InputError
from itta.settings import Adaptation
from itta.sweep.plan import Sweep, read_sweep, write_sweep
from itta.trial import Trial

VLCS = ("Caltech101", "LabelMe", "SUN09", "VOC2007")
SWEEP = Sweep({"data/VLCS": VLCS}, ("erm", "itta"), hparams_seeds=2, trial_seeds=3)


def test_every_target_once_from_all_others() -> None:
    trials = list(SWEEP.trials())
    assert len(trials) == len({t.key for t in trials}) == 2 * 4 * 2 * 3
    assert {(t.train_domains, t.test_domains) for t in trials} == {
        (tuple(d for d in VLCS if d != target), (target,)) for target in VLCS
    }
    assert {(t.algorithm, t.hparams_seed, t.trial_seed) for t in trials} == {
        (a, h, s) for a in ("erm", "itta") for h in range(2) for s in range(3)
    }
    chosen = replace(SWEEP, targets=("SUN09",))
    assert {t.test_domains for t in chosen.trials()} == {("SUN09",)}


def test_run_seeds_are_domainbeds() -> None:
    """Golden: run (VLCS, ERM, test environments 1 and 2, hparams seed 1, trial seed 0) of its test sweep."""
    trials = replace(SWEEP, pairs=True).trials()
    (found,) = (
        t
        for t in trials
        if (t.algorithm, t.test_domains, t.hparams_seed, t.trial_seed) == ("erm", ("LabelMe", "SUN09"), 1, 0)
    )
    assert found.seed == 360234358
    elsewhere = replace(SWEEP, datasets={"/mnt/vlcs": VLCS})
    assert [t.seed for t in elsewhere.trials()] == [t.seed for t in SWEEP.trials()]  # wherever the images are


def test_pairs_are_those_of_domainbed() -> None:
    """Its own test counts 2 × 3 × (3 + 3) for three environments."""
    sweep = Sweep({"Debug28": ("a", "b", "c")}, ("erm",), pairs=True, hparams_seeds=2, trial_seeds=3)
    trials = list(sweep.trials())
    assert len(trials) == 36
    alone, pair = (next(t for t in trials if t.test_domains == test) for test in (("a",), ("a", "b")))
    assert alone.settings_key == pair.settings_key  # how selection finds the pairs of a run
    assert alone.seed != pair.seed
    adapted = replace(sweep, adaptation=Adaptation(("tent",)))
    assert adapted.adaptation_of(alone).adapters == ("tent",)
    assert adapted.adaptation_of(pair).adapters == ()


def test_single_source_trains_once_for_all_targets() -> None:
    sweep = replace(SWEEP, single_source=True, algorithms=("erm",), hparams_seeds=1, trial_seeds=1)
    found = {t.train_domains: t.test_domains for t in sweep.trials()}
    assert found == {(s,): tuple(d for d in VLCS if d != s) for s in VLCS}
    one = {t.train_domains: t.test_domains for t in replace(sweep, targets=("SUN09",)).trials()}
    assert one == {(s,): ("SUN09",) for s in VLCS if s != "SUN09"}
    assert len({t.seed for t in sweep.trials()}) == 4


@pytest.mark.parametrize(
    ("data", "size", "asked", "regime"),
    [
        ("VLCS", 224, "auto", "large"),
        ("digits", 28, "auto", "small"),
        ("DomainNet", 224, "auto", "domainnet"),
        ("VLCS", 64, "small", "small"),
    ],
)
def test_the_regime_of_the_search(data, size, asked, regime) -> None:
    sweep = Sweep({data: VLCS}, ("erm",), image_size=size, regime=asked)
    assert {t.regime for t in sweep.trials()} == {regime}


def test_what_was_trained_before_sweeps_keeps_its_key() -> None:
    """Golden values of a version without regime and run seed: its checkpoints must go on."""
    trial = Trial("photos", "erm", ("dawn", "noon"), ("night",), 1, 2, overrides={"lr": "1e-4"})
    assert trial.key == "3b02d14ee7d611dd27d569aa8671dc58"
    assert trial.settings_key == "7152258d3f310d2f32b0e26d27cd02be"
    assert trial.seed == 1733736034
    assert not {"regime", "run_seed"} & trial.to_json().keys()
    for other in (replace(trial, regime="small"), replace(trial, run_seed=5)):
        assert other.key != trial.key
        assert Trial.from_json(json.loads(json.dumps(other.to_json()))) == other


def test_there_and_back(tmp_path: Path) -> None:
    sweep = replace(
        SWEEP, overrides={"lr": "1e-4"}, adaptation=Adaptation(("tent", "t3a"), {"tent": {"lr": "1e-3"}}, "both", 16)
    )
    write_sweep(tmp_path / "new", sweep)
    assert read_sweep(tmp_path / "new") == sweep
    assert [t.key for t in read_sweep(tmp_path / "new").trials()] == [t.key for t in sweep.trials()]


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"datasets": {}, "colour": 1}'])
def test_a_damaged_sweep_is_told(text, tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(InputError, match=r"sweep\.json is damaged"):
        read_sweep(tmp_path)


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown target 'SUN9'. Did you mean 'SUN09'"):
        replace(SWEEP, targets=("SUN9",))
    with pytest.raises(InputError, match="photos has 1 domains"):
        Sweep({"photos": ("only",)}, ("erm",))
    with pytest.raises(InputError, match="photos has 2 domains"):
        Sweep({"photos": ("a", "b")}, ("erm",), pairs=True)
    with pytest.raises(InputError, match="--pairs or --single-source"):
        replace(SWEEP, pairs=True, single_source=True)
    with pytest.raises(InputError, match="holds no sweep"):
        read_sweep(tmp_path)
