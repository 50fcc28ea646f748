"""Mixed statistics against the formula, value by value."""

import pytest
import torch
from torch import Tensor, nn

from itta.nn import batch_norm
from itta.nn.backbone import evaluating
from itta.nn.batch_norm import (
    MixedBatchNorm,
    batch_norms,
    channel_moments,
    has_batch_norm,
    mix_statistics,
    replace_batch_norms,
)


def filled(norm: nn.Module) -> nn.Module:
    """A layer in evaluation mode with the statistics of a training."""
    generator = torch.Generator().manual_seed(0)
    for tensor in [*norm.parameters(), *norm.buffers()]:
        if tensor.is_floating_point():
            tensor.data = 0.5 + torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
    return norm.eval()


def naive(norm: nn.Module, x: Tensor, share: float) -> tuple[Tensor, Tensor, Tensor]:
    """Output, mean and variance, channel by channel."""
    out, means, variances = torch.empty_like(x), [], []
    for c in range(x.shape[1]):
        values = x[:, c].flatten().tolist()
        mean = sum(values) / len(values)
        var = sum((v - mean) ** 2 for v in values) / len(values)
        means.append((1 - share) * float(norm.running_mean[c]) + share * mean)
        variances.append((1 - share) * float(norm.running_var[c]) + share * var)
        weight, bias = (1.0, 0.0) if norm.weight is None else (norm.weight[c].item(), norm.bias[c].item())
        out[:, c] = (x[:, c] - means[-1]) / (variances[-1] + norm.eps) ** 0.5 * weight + bias
    return out, torch.tensor(means, dtype=x.dtype), torch.tensor(variances, dtype=x.dtype)


LAYERS = {
    "maps": (lambda: nn.BatchNorm2d(4), (5, 4, 3, 2)),
    "one image": (lambda: nn.BatchNorm2d(4), (1, 4, 3, 2)),
    "one value": (lambda: nn.BatchNorm2d(4), (1, 4, 1, 1)),
    "another eps": (lambda: nn.BatchNorm2d(4, eps=0.1), (5, 4, 3, 2)),
    "no weights": (lambda: nn.BatchNorm2d(4, affine=False), (5, 4, 3, 2)),
    "vectors": (lambda: nn.BatchNorm1d(4), (6, 4)),
    "sequences": (lambda: nn.BatchNorm1d(4), (3, 4, 5)),
    "volumes": (lambda: nn.BatchNorm3d(4), (2, 4, 3, 2, 2)),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("track", [False, True])
def test_the_formula(layer: str, share: float, track: bool) -> None:
    make, shape = LAYERS[layer]
    norm, x = filled(make()), 3 + 2 * torch.randn(shape, dtype=torch.float64)
    expected, mean, var = naive(norm, x, share)
    stored = norm.running_mean.clone(), norm.running_var.clone()
    torch.testing.assert_close(MixedBatchNorm(norm, lambda n: share, track)(x), expected, rtol=0, atol=1e-11)
    left = (mean, var) if track else stored
    torch.testing.assert_close((norm.running_mean, norm.running_var), left, rtol=0, atol=0 if not track else 1e-11)
    assert int(norm.num_batches_tracked) == 0


def test_tracking_goes_on_from_what_the_last_batch_left() -> None:
    norm = filled(nn.BatchNorm2d(4))
    mixed = MixedBatchNorm(norm, lambda n: 0.3, track=True)
    for _ in range(3):
        x = torch.randn(5, 4, 3, 2, dtype=torch.float64)
        expected = naive(norm, x, 0.3)[0]
        torch.testing.assert_close(mixed(x), expected, rtol=0, atol=1e-11)


def test_the_share_may_depend_on_the_number_of_images() -> None:
    norm = filled(nn.BatchNorm2d(4))
    mixed = MixedBatchNorm(norm, lambda n: n / (16 + n))
    for n in (1, 4, 16):
        x = torch.randn(n, 4, 3, 2, dtype=torch.float64)
        torch.testing.assert_close(mixed(x), naive(norm, x, n / (16 + n))[0], rtol=0, atol=1e-11)


def test_statistics_are_constants_to_autograd() -> None:
    norm, x = filled(nn.BatchNorm2d(4)), torch.randn(5, 4, 3, 2, dtype=torch.float64, requires_grad=True)
    mixed = MixedBatchNorm(norm, lambda n: 0.3, track=True)
    _, _, var = naive(norm, x.detach(), 0.3)
    mixed(x).sum().backward()
    slope = (norm.weight / (var + norm.eps).sqrt()).detach()
    torch.testing.assert_close(x.grad, slope.view(-1, 1, 1).expand_as(x))
    assert norm.weight.grad is not None
    assert not norm.running_mean.requires_grad


def test_moments_far_from_zero_keep_their_digits() -> None:
    x = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    far = x + 1000
    var = channel_moments(far)[1]
    torch.testing.assert_close(var, far.double().var((0, 2, 3), correction=0).float(), rtol=1e-4, atol=0)
    assert channel_moments(torch.full((4, 2, 8, 8), 1234.5))[1].tolist() == [0, 0]


@pytest.mark.parametrize("chunk", [1, 24, 25, 60, 10_000])
def test_moments_do_not_depend_on_how_they_are_cut(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_norm, "CHUNK", chunk)
    x = torch.randn(5, 4, 3, 2, dtype=torch.float64)
    expected = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
    torch.testing.assert_close(channel_moments(x), expected, rtol=0, atol=1e-12)


def test_every_layer_is_wrapped_and_nothing_else_changes() -> None:
    inner = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    net = nn.Sequential(inner, nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)).double()
    for module in (inner[1], net[2]):
        filled(module)
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    parameters = list(net.parameters())
    with evaluating(net):
        expected = net(x)
        mixed = mix_statistics(net, lambda n: 0.0)
        torch.testing.assert_close(net(x), expected, rtol=0, atol=0)
    assert list(mixed) == ["0.1", "2"]
    assert all(net.get_submodule(name) is norm for name, norm in mixed.items())
    assert all(p is q for p, q in zip(net.parameters(), parameters, strict=True))


def test_finding_and_replacing() -> None:
    net = nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), nn.LayerNorm(4), nn.BatchNorm1d(4))
    found = batch_norms(net)
    assert found == {"0.1": net[0][1], "2": net[2]}
    assert has_batch_norm(net)
    made = replace_batch_norms(net, lambda norm: nn.GroupNorm(2, norm.num_features))
    assert made == {"0.1": net[0][1], "2": net[2]}
    assert all(isinstance(norm, nn.GroupNorm) for norm in made.values())
    assert isinstance(net[1], nn.LayerNorm)
    assert not has_batch_norm(net)
    assert replace_batch_norms(net, nn.Sequential) == {}


class Activated(nn.BatchNorm2d):
    """Like timm's BatchNormAct2d."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


def test_what_a_layer_does_beyond_normalising_stays() -> None:
    norm, x = filled(Activated(4)), 2 * torch.randn(5, 4, 3, 2, dtype=torch.float64)
    expected = naive(norm, x, 0.3)[0].relu()
    net = nn.Sequential(norm)
    mix_statistics(net, lambda n: 0.3)
    torch.testing.assert_close(net(x), expected, rtol=0, atol=1e-11)
    assert (expected == 0).any()
