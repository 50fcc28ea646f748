"""The losses of ERM, MixStyle and Consistency, recomputed block by block with the draw fixed by the seed."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from itta.algorithms import Algorithm
from itta.algorithms.base import Batch, dropout
from itta.functional.transfers import fetch_numbers
from itta.nn.style_mixing import MixDraw, draw_mix
from itta.nn.views import draw_noise

Build = Callable[..., Algorithm]
Batches = Callable[..., list[Batch]]


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    chosen = torch.stack([row[label] for row, label in zip(logits, y)])
    return (logits.exp().sum(1).log() - chosen).mean()


def mixed(z: Tensor, draw: MixDraw) -> Tensor:
    """Apply MixStyle image by image and channel by channel."""
    out = torch.empty_like(z)

    def style(channel: Tensor) -> tuple[Tensor, Tensor]:
        return channel.mean(), (channel.var() + 1e-6).sqrt()

    for i, (lam, j) in enumerate(zip(draw.lam, draw.partner)):
        for c in range(z.shape[1]):
            (mean, std), (other_mean, other_std) = style(z[i, c]), style(z[j, c])
            own = (z[i, c] - mean) / std
            out[i, c] = own * (lam * std + (1 - lam) * other_std) + lam * mean + (1 - lam) * other_mean
    return out


def features(algorithm: Algorithm, x: Tensor, draws: dict[str, MixDraw]) -> Tensor:
    z = (x - 0.5) / 0.5
    for name in algorithm.backbone.block_names:
        z = algorithm.backbone.get_submodule(name)(z)
        z = mixed(z, draws[name]) if name in draws else z
    return z.mean((2, 3))


def doubled(batches: list[Batch]) -> tuple[list[Batch], Tensor, Tensor]:
    batches = [(x.double(), y) for x, y in batches]
    return batches, torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])


def test_erm(build: Build, toy_batches: Batches) -> None:
    algorithm = build("erm").double()
    batches, x, y = doubled(toy_batches(0, n=3))
    loss, logs = algorithm.objective(batches)
    expected = cross_entropy(algorithm.head(features(algorithm, x, {})), y)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    assert logs == {"loss": loss.item()}


def test_mixstyle(build: Build, toy_batches: Batches) -> None:
    algorithm = build("mixstyle", mix_alpha=0.7).double()
    batches, x, y = doubled(toy_batches(0, n=3))
    mixed_blocks = []
    for seed in range(4):
        torch.manual_seed(seed)
        loss, _ = algorithm.objective(batches)
        torch.manual_seed(seed)
        draws = {}
        for block in ("block1", "block2", "block3"):
            if torch.rand(()) < 0.5:
                draws[block] = draw_mix(len(x), (block,), 0.7)
        expected = cross_entropy(algorithm.head(features(algorithm, x, draws)), y)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
        mixed_blocks.append(tuple(draws))
    assert len(set(mixed_blocks)) > 1
    assert any(mixed_blocks)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_mixstyle_never_and_always(p: float, build: Build, toy_batches: Batches) -> None:
    algorithm = build("mixstyle", mix_p=p).double()
    batches, x, y = doubled(toy_batches(0, n=3))
    loss, _ = algorithm.objective(batches)
    plain = cross_entropy(algorithm.head(features(algorithm, x, {})), y)
    assert (loss.item() == pytest.approx(plain.item(), rel=1e-12)) == (p == 0)


def test_mixstyle_is_off_when_predicting(build: Build, toy_batches: Batches) -> None:
    algorithm = build("mixstyle", mix_p=1.0).double()
    _, x, _ = doubled(toy_batches(0, n=3))
    for mode in (True, False):
        got = algorithm.train(mode).predict(x)
        torch.testing.assert_close(got, algorithm.head(features(algorithm, x, {})), rtol=1e-12, atol=1e-12)


def test_consistency(build: Build, toy_batches: Batches) -> None:
    algorithm = build("consistency", alpha=0.3).double()
    batches, x, y = doubled(toy_batches(0, n=3))
    blocks = set()
    for seed in range(4):
        torch.manual_seed(seed)
        loss, logs = algorithm.objective(batches)
        torch.manual_seed(seed)
        draw = draw_mix(len(x), ("block1", "block2"), 0.1)
        blocks.add(draw.block)
        z, z_aug = features(algorithm, x, {}), features(algorithm, x, {draw.block: draw})
        main = cross_entropy(algorithm.head(z), y) + cross_entropy(algorithm.head(z_aug), y)
        consistency = ((z - z_aug) ** 2).mean()
        assert consistency > 0
        assert loss.item() == pytest.approx((main + 0.3 * consistency).item(), rel=1e-12)
        expected = {"loss": main.item(), "consistency": consistency.item()}
        assert fetch_numbers(logs) == pytest.approx(expected, rel=1e-12)
    assert blocks == {"block1", "block2"}


def test_consistency_with_noise_on_the_features(build: Build, toy_batches: Batches) -> None:
    algorithm = build("consistency", view="noise", sfa_sigma=0.2).double()
    batches, x, y = doubled(toy_batches(0, n=3))
    torch.manual_seed(0)
    loss, _ = algorithm.objective(batches)
    torch.manual_seed(0)
    draw = draw_noise(len(x), algorithm.backbone.dim, 0.2)
    z = features(algorithm, x, {})
    z_aug = draw.scale.double() * z + draw.shift.double()
    main = cross_entropy(algorithm.head(z), y) + cross_entropy(algorithm.head(z_aug), y)
    assert loss.item() == pytest.approx((main + ((z - z_aug) ** 2).mean()).item(), rel=1e-12)


def test_dropout_keeps_the_mean() -> None:
    torch.manual_seed(0)
    z = torch.rand(200, 300) + 0.5
    out = dropout(z, 0.3)
    kept = out != 0
    assert kept.float().mean().item() == pytest.approx(0.7, abs=5 * (0.21 / 60_000) ** 0.5)
    torch.testing.assert_close(out[kept], z[kept] / 0.7)
    assert dropout(z, 0.0) is z


def test_dropout_acts_while_training_only(build: Build, toy_batches: Batches) -> None:
    algorithm, (x, _) = build("erm", resnet_dropout=0.5), toy_batches(0)[0]
    assert not torch.equal(algorithm.predict(x), algorithm.predict(x))
    assert (algorithm.features(x) == 0).any()
    algorithm.eval()
    assert torch.equal(algorithm.features(x), algorithm.backbone(x))
