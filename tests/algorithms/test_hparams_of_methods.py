"""Hyper-parameters are drawn as DomainBed draws them, for every method, to the last digit.

This file repeats defaults, ranges and seeding under DomainBed's names and in plain NumPy.
"""

import hashlib
from collections.abc import Callable
from dataclasses import asdict
from itertools import product
from typing import Any

import numpy as np
import pytest

from itta.algorithms import ALGORITHMS
from itta.hparams import default, sample

Generator = np.random.RandomState
Entry = tuple[Any, Callable[[Generator], Any]]  # default, draw
REGIMES = ("large", "small", "domainnet")


def seed_hash(*args: object) -> int:
    return int(hashlib.md5(str(args).encode("utf-8")).hexdigest(), 16) % 2**31


def constant(value: Any) -> Entry:
    return value, lambda r: value


def shared(name: str, regime: str) -> dict[str, Entry]:
    small = regime == "small"
    table: dict[str, Entry] = {
        # The 28-pixel network has no dropout, so we draw none. DomainBed draws one that has no effect.
        "resnet_dropout": constant(0.0) if small else (0.0, lambda r: r.choice([0.0, 0.1, 0.5])),
        "lr": learning_rate(regime),
        "weight_decay": weight_decay(regime),
        "batch_size": (32, lambda r: int(2 ** r.uniform(3, 5.5))),
    }
    if small:
        table["batch_size"] = (64, lambda r: int(2 ** r.uniform(3, 9)))
    elif name == "arm":
        table["batch_size"] = constant(8)
    elif regime == "domainnet":
        table["batch_size"] = (32, lambda r: int(2 ** r.uniform(3, 5)))
    return table


def learning_rate(regime: str) -> Entry:
    if regime == "small":
        return 1e-3, lambda r: 10 ** r.uniform(-4.5, -2.5)
    return 5e-5, lambda r: 10 ** r.uniform(-5, -3.5)


def weight_decay(regime: str) -> Entry:
    return constant(0.0) if regime == "small" else (0.0, lambda r: 10 ** r.uniform(-6, -2))


def adversarial(regime: str) -> dict[str, Entry]:
    return {
        "lambda": (1.0, lambda r: 10 ** r.uniform(-2, 2)),
        "weight_decay_d": (0.0, lambda r: 10 ** r.uniform(-6, -2)),
        "d_steps_per_g_step": (1, lambda r: int(2 ** r.uniform(0, 3))),
        "grad_penalty": (0.0, lambda r: 10 ** r.uniform(-2, 1)),
        "beta1": (0.5, lambda r: r.choice([0.0, 0.5])),
        "mlp_width": (256, lambda r: int(2 ** r.uniform(6, 10))),
        "mlp_depth": (3, lambda r: int(r.choice([3, 4, 5]))),
        "mlp_dropout": (0.0, lambda r: r.choice([0.0, 0.1, 0.5])),
        "lr_g": learning_rate(regime),
        "lr_d": learning_rate(regime),
        "weight_decay_g": weight_decay(regime),
    }


def penalised(prefix: str, lam: float) -> dict[str, Entry]:
    return {
        f"{prefix}_lambda": (lam, lambda r: 10 ** r.uniform(-1, 5)),
        f"{prefix}_penalty_anneal_iters": (500, lambda r: int(10 ** r.uniform(0, 4))),
    }


MMD_GAMMA: dict[str, Entry] = {"mmd_gamma": (1.0, lambda r: 10 ** r.uniform(-1, 1))}
BOTTLENECK: dict[str, Entry] = {
    "lmbda": (1e-1, lambda r: r.choice([1e-4, 1e-3, 1e-2, 1e-1, 1, 1e1, 1e2])),
    "temperature": (0.1, lambda r: r.choice([0.05, 0.1])),
    "is_normalized": constant(False),
    "is_project": constant(False),
    "is_flipped": constant(True),
}
DOMAINBED: dict[str, dict[str, Entry]] = {
    "erm": {},
    "irm": penalised("irm", 1e2),
    "groupdro": {"groupdro_eta": (1e-2, lambda r: 10 ** r.uniform(-3, -1))},
    "mixup": {"mixup_alpha": (0.2, lambda r: 10 ** r.uniform(-1, 1))},
    "mldg": {
        "mldg_beta": (1.0, lambda r: 10 ** r.uniform(-1, 1)),
        "n_meta_test": (2, lambda r: r.choice([1, 2])),
    },
    "coral": MMD_GAMMA,
    "mmd": MMD_GAMMA,
    "mtl": {"mtl_ema": (0.99, lambda r: r.choice([0.5, 0.9, 0.99, 1.0]))},
    "sagnet": {"sag_w_adv": (0.1, lambda r: 10 ** r.uniform(-2, 1))},
    "arm": {},
    "vrex": penalised("vrex", 1e1),
    "rsc": {
        "rsc_f_drop_factor": (1 / 3, lambda r: r.uniform(0, 0.5)),
        "rsc_b_drop_factor": (1 / 3, lambda r: r.uniform(0, 0.5)),
    },
    "selfreg": {},
    "fish": {"meta_lr": (0.5, lambda r: r.choice([0.05, 0.1, 0.5]))},
    "sd": {"sd_reg": (0.1, lambda r: 10 ** r.uniform(-5, -1))},
    "cad": BOTTLENECK,
    "condcad": BOTTLENECK,
    "fishr": {
        "lambda": (1000.0, lambda r: 10 ** r.uniform(1.0, 4.0)),
        "penalty_anneal_iters": (1500, lambda r: int(r.uniform(0.0, 5000.0))),
        "ema": (0.95, lambda r: r.uniform(0.90, 0.99)),
    },
}
NOISE: dict[str, Entry] = {"sfa_sigma": (0.5, lambda r: 10 ** r.uniform(-1.5, 0))}
OURS: dict[str, dict[str, Entry]] = {  # methods that DomainBed does not have, with ranges of our own
    "mixstyle": {},
    "feature_critic": {"critic_beta": (0.01, lambda r: 10 ** r.uniform(-3, 1))},
    "metareg": {
        "metareg_inner_lr": (1e-2, lambda r: 10 ** r.uniform(-3, -1)),
        "metareg_lr": (1e-3, lambda r: 10 ** r.uniform(-4, -2)),
    },
    "ttt": {"ttt_weight": (1.0, lambda r: 10 ** r.uniform(-1, 1))},
    "ttt++": {"simclr_weight": (1.0, lambda r: 10 ** r.uniform(-1, 1))},
    "mt3": {
        "mt3_inner_lr": (0.1, lambda r: 10 ** r.uniform(-2, 0)),
        "mt3_weight": (0.1, lambda r: 10 ** r.uniform(-2, 0)),
    },
    "consistency": NOISE,
    "itta": NOISE,
}


def expected(name: str, regime: str) -> dict[str, Entry]:
    own = adversarial(regime) if name in ("dann", "cdann") else (DOMAINBED | OURS)[name]
    return shared(name, regime) | own


def by_domainbeds_names(hparams: Any) -> dict[str, Any]:
    return {name.removesuffix("_"): value for name, value in asdict(hparams).items()}


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Check that values are equal and of plain Python types, as records need them."""
    assert found == expected
    assert all(type(value) in (int, float, bool, str) for value in found.values())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_defaults(name: str) -> None:
    for regime in REGIMES:
        found = by_domainbeds_names(default(ALGORITHMS[name].Hparams, regime))
        table = expected(name, regime)
        assert_equal({key: found[key] for key in table}, {key: value for key, (value, _) in table.items()})


@pytest.mark.parametrize("name", ALGORITHMS)
def test_draws(name: str) -> None:
    cls = ALGORITHMS[name].Hparams
    for regime, hparams_seed, trial_seed in product(REGIMES, (1, 2, 3), (0, 1)):
        seed = seed_hash(hparams_seed, trial_seed)
        drawn = {key: draw(Generator(seed_hash(seed, key))) for key, (_, draw) in expected(name, regime).items()}
        # Hyper-parameters that the table does not name are ours, and are not searched.
        untouched = by_domainbeds_names(default(cls, regime))
        assert_equal(by_domainbeds_names(sample(cls, hparams_seed, trial_seed, regime)), untouched | drawn)


def test_golden_values() -> None:
    """These values were drawn by DomainBed itself."""
    assert seed_hash(1, 0) == 785910682
    found = asdict(sample(ALGORITHMS["erm"].Hparams, 1, 0))
    golden = {
        "lr": 2.7028930742148706e-05,
        "weight_decay": 0.00044832883881609976,
        "batch_size": 39,
        "resnet_dropout": 0.5,
    }
    assert {key: found[key] for key in golden} == golden
