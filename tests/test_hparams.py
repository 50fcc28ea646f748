from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
import pytest

from itta.algorithms import ALGORITHMS
from itta.algorithms.base import Hparams
from itta.errors import InputError
from itta.hparams import (
    choice,
    default,
    hp,
    later_defaults,
    override,
    parse,
    parse_settings,
    power,
    recorded,
    sample,
    uniform,
)


def test_defaults_are_domainbeds() -> None:
    assert default(Hparams) == Hparams(lr=5e-5, batch_size=32, weight_decay=0.0, resnet_dropout=0.0)
    assert default(Hparams, "small") == Hparams(lr=1e-3, batch_size=64, weight_decay=0.0, resnet_dropout=0.0)
    assert default(Hparams, "domainnet") == default(Hparams)
    assert sample(Hparams, 0, 5) == default(Hparams)
    assert sample(Hparams, 0, 5, "small") == default(Hparams, "small")


def test_draws_are_domainbeds_to_the_last_digit() -> None:
    """Golden values of hparams seed 1, trial seed 0."""
    found = sample(Hparams, 1, 0)
    assert found.lr == 2.7028930742148706e-05
    assert found.weight_decay == 0.00044832883881609976
    assert (found.batch_size, found.resnet_dropout) == (39, 0.5)
    assert type(found.batch_size) is int
    assert type(found.resnet_dropout) is float


def test_the_small_regime() -> None:
    found = sample(Hparams, 1, 0, "small")
    # the same uniform numbers on other ranges: log10 lr = -5 + 1.5·u on large images, -4.5 + 2·u on small ones
    u = (np.log10(2.7028930742148706e-05) + 5) / 1.5
    assert found.lr == pytest.approx(10 ** (-4.5 + 2 * u), rel=1e-9)
    large = sample(Hparams, 1, 0).batch_size
    v = (np.log2(large + np.array([0, 1])) - 3) / 2.5  # 39 ≤ 2^(3 + 2.5 v) < 40
    low, high = 2 ** (3 + 6 * v)
    assert int(low) <= found.batch_size <= int(high)
    assert (found.weight_decay, found.resnet_dropout) == (0.0, 0.0)


def test_domainnet_draws_smaller_batches() -> None:
    large, net = (
        {sample(Hparams, seed, 0, regime).batch_size for seed in range(1, 200)} for regime in ("large", "domainnet")
    )
    assert max(net) < 32 < max(large) <= 45
    assert min(net) >= 8


def test_ranges() -> None:
    drawn = [sample(Hparams, seed, seed % 3) for seed in range(1, 200)]
    assert all(10**-5 <= h.lr <= 10**-3.5 for h in drawn)
    assert all(10**-6 <= h.weight_decay <= 10**-2 for h in drawn)
    assert {h.resnet_dropout for h in drawn} == {0.0, 0.1, 0.5}
    assert len({h.lr for h in drawn}) == len(drawn)


def test_a_new_field_shifts_no_old_draw() -> None:
    @dataclass(frozen=True)
    class More(Hparams):
        extra: float = hp(1.0, "another", uniform(0, 1))
        fixed: int = hp(3, "no range")

    more, base = sample(More, 1, 0), sample(Hparams, 1, 0)
    assert (more.lr, more.batch_size, more.weight_decay) == (base.lr, base.batch_size, base.weight_decay)
    assert 0 < more.extra < 1
    assert more.fixed == 3


def test_distributions() -> None:
    def r() -> np.random.RandomState:
        return np.random.RandomState(0)

    u = r().uniform(2, 3)
    assert uniform(2, 3)(r()) == u
    assert power(10, 2, 3)(r()) == 10**u
    assert power(2, 2, 3, whole=True)(r()) == int(2**u)
    assert choice("a", "b")(r()) in ("a", "b")
    assert type(choice(1, 2)(r())) is int


def test_distributions_are_written() -> None:
    draws = (uniform(0, 0.5), uniform(0, 5000, whole=True), power(10, -5, -3.5), power(2, 3, 5.5, whole=True))
    assert [d.text for d in draws] == ["U(0, 0.5)", "int U(0, 5000)", "10^U(-5, -3.5)", "int 2^U(3, 5.5)"]
    assert choice(0.0, 0.1, 0.5).text == "one of 0.0, 0.1, 0.5"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithms_hparams_are_documented_and_drawn_alike(name: str) -> None:
    cls = ALGORITHMS[name].Hparams
    assert all(f.metadata["doc"] for f in fields(cls))
    for regime in ("large", "small", "domainnet"):
        assert sample(cls, 3, 1, regime) == sample(cls, 3, 1, regime)
        assert override(default(cls, regime), vars(sample(cls, 3, 1, regime))) == sample(cls, 3, 1, regime)


@dataclass(frozen=True)
class Example:
    rate: float = hp(0.1, "a number")
    steps: int = hp(1, "a whole number")
    on: bool = hp(False, "a switch")
    blocks: tuple[str, ...] = hp((), "names")
    kind: Literal["a", "b"] = hp("a", "a choice")


def test_overrides() -> None:
    words = {"rate": "1e-4", "steps": "3", "on": "Yes", "blocks": "layer3,layer4", "kind": "b"}
    assert default(Example, **words) == Example(1e-4, 3, True, ("layer3", "layer4"), "b")
    assert default(Example, rate=2, on=True, blocks=["x"]) == Example(2.0, 1, True, ("x",), "a")
    assert default(Example, blocks="") == Example()
    assert sample(Hparams, 1, 0, lr="0.5").lr == 0.5
    assert override(Example(steps=4), {"rate": 1}).steps == 4


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rat", "1", r"unknown hyper-parameter 'rat'\. Did you mean 'rate'\? Choices: rate, steps, on, blocks, kind\."),
        ("rate", "fast", r"rate must be of type float, got 'fast'\."),
        ("rate", None, r"rate must be of type float, got None\."),
        ("steps", "2.5", r"steps must be of type int, got '2\.5'\."),
        ("steps", 2.5, r"steps must be of type int, got 2\.5\."),
        ("on", "maybe", r"on must be true or false, got 'maybe'\."),
        ("kind", "c", r"kind: 'c'.*Choices: a, b\."),
        ("blocks", 5, r"blocks must be names, got 5\."),
    ],
)
def test_wrong_overrides(name: str, value: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        default(Example, **{name: value})


@pytest.mark.parametrize("text", ["alpha", "=3", ""])
def test_wrong_settings(text: str) -> None:
    with pytest.raises(InputError, match="a setting is written name=value"):
        parse_settings(["lr=1", text])


def test_settings() -> None:
    assert parse_settings(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    assert parse("blocks", "a,,b,", tuple[str, ...]) == ("a", "b")


def test_a_younger_field_is_recorded_only_if_it_is_set() -> None:
    @dataclass(frozen=True)
    class Grown:
        rate: float = hp(0.1, "an old field")
        names: tuple[str, ...] = hp((), "a younger field", later=True)

    assert recorded(Grown()) == {"rate": 0.1}
    assert recorded(Grown(names=("a",))) == {"rate": 0.1, "names": ("a",)}
    assert later_defaults(Grown) == {"names": ()}
