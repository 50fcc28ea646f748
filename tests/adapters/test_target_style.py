"""The style of a target, and its jumps, against the definitions written out."""

import pytest
import torch
from torch import Tensor

from itta.adapters.target_style import (
    LEAST,
    WINDOW,
    StyleChange,
    TargetStyle,
    append_restyled,
    flat_styles,
    variance_within,
)
from itta.nn.style_bank import StyleBank

CHANNELS = 5


def styles(n: int, seed: int, mean: float = 0.0, contrast: float = 1.0) -> Tensor:
    """[n, 2, C]: means around ``mean``, deviations around ``contrast``."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(n, 2, CHANNELS, generator=generator, dtype=torch.double)
    return torch.stack([mean + noise[:, 0], contrast * (0.3 * noise[:, 1]).exp()], 1)


@pytest.fixture
def bank() -> StyleBank:
    rows = torch.cat([styles(40, 1), styles(40, 2, mean=2.0)])
    return StyleBank({"one": rows[:, 0]}, {"one": rows[:, 1]}, torch.arange(2).repeat_interleave(40), ("a", "b"))


@pytest.fixture
def change(bank: StyleBank) -> StyleChange:
    return TargetStyle(bank, ["one"], torch.zeros(0, dtype=torch.double)).change


def naive_jump(rows: Tensor, within: Tensor) -> float:
    before, latest = rows[:-WINDOW], rows[-WINDOW:]
    if len(before) < LEAST:
        return 0.0
    total = 0.0
    for c in range(rows.shape[1]):
        mean = sum(before[:, c].tolist()) / len(before)
        variance = sum((v - mean) ** 2 for v in before[:, c].tolist()) / len(before)
        now = sum(latest[:, c].tolist()) / len(latest)
        total += (now - mean) ** 2 / max(variance, float(within[c]))
    return total / rows.shape[1]


def test_the_jump_is_its_definition(change: StyleChange) -> None:
    rows = flat_styles(torch.cat([styles(60, 3), styles(12, 4, mean=1.0)]))
    expected = [naive_jump(rows[:n], change.within) for n in range(1, 73)]
    assert change.jumps(rows.numpy()).tolist() == pytest.approx(expected)
    found = []
    for part in rows.split(7):
        found += change.jumps(part.numpy()).tolist()
        change.add(part.numpy())
    assert found == pytest.approx(expected)
    assert max(expected) > 0.1


@pytest.mark.parametrize("size", [1, 5, 64])
@pytest.mark.parametrize("shift", [{"mean": 3.0}, {"contrast": 4.0}])
def test_a_new_domain_is_noticed_within_a_window(size: int, shift: dict[str, float], change: StyleChange) -> None:
    stream = torch.cat([styles(128, 5), styles(128, 6, **shift)])
    noticed = [size * i for i, part in enumerate(stream.split(size)) if change.notice(part, 1.5)]
    assert len(noticed) == 1
    assert 128 <= noticed[0] + size - 1 <= 128 + max(WINDOW, size)


def test_one_domain_has_no_jump(change: StyleChange) -> None:
    assert not any(change.notice(part, 1.5) for part in styles(2000, 7).split(10))


def test_the_source_spread_is_that_within_domains(bank: StyleBank, change: StyleChange) -> None:
    """Two sources that lie far apart must not hide a jump of a target."""
    rows = flat_styles(torch.stack([bank.mean["one"], bank.std["one"]], 1))
    assert (change.within[:CHANNELS] < 0.75 * rows.var(0)[:CHANNELS].numpy()).all()
    assert variance_within(rows, bank.domain).tolist() == change.within.tolist()


def test_a_state_continues(bank: StyleBank) -> None:
    like = torch.zeros(0, dtype=torch.double)
    one, other = (TargetStyle(bank, ["one"], like) for _ in range(2))
    for target, parts in ((one, styles(90, 8).split(9)), (other, ())):
        for part in parts:
            target.change.notice(part, 1.5)
            target.add("one", part, target.fade(len(part), memory=50))
    other.load_state_dict(one.state_dict())
    torch.testing.assert_close(other.theta("one", 4.0, 0.5), one.theta("one", 4.0, 0.5))
    later = styles(9, 9, mean=6.0)
    assert one.change.notice(later, 1.5) == other.change.notice(later, 1.5) is True
    one.reset()
    assert one.change.images == len(one.change.latest) == one.weight == 0


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_the_restyled_half_is_appended(order: torch.memory_format) -> None:
    z = torch.randn(3, CHANNELS, 4, 4).to(memory_format=order)
    a, b = torch.randn(2, 1, CHANNELS, 1, 1)
    found = append_restyled(z, z, a, b)
    assert torch.equal(found, torch.cat([z, torch.addcmul(b, z, a)]))  # rounded once: z·a + b rounds twice
    torch.testing.assert_close(found[3:], z * a + b)
    assert found.is_contiguous(memory_format=order)
    tokens, scale, shift = torch.randn(3, 7, CHANNELS), a.flatten(), b.flatten()
    assert torch.equal(append_restyled(tokens, tokens, scale, shift)[3:], torch.addcmul(shift, tokens, scale))
