"""Robust batch normalisation, written out with loops over channels."""

import pytest
import torch
from torch import Tensor, nn

from itta.nn.robust_norm import RobustNorm, learning_statistics, statistics, use_robust_norm


def norm_of(kind: type[nn.Module], affine: bool = True) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    norm = kind(3, affine=affine, eps=1e-3).double().eval()
    for tensor in (*norm.parameters(), norm.running_mean, norm.running_var):
        tensor.data = torch.rand(3, dtype=torch.float64, generator=generator) + 0.5
    return norm


def naive(x: Tensor, norm: nn.Module, share: float) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    out, means, variances = [], [], []
    for c in range(3):
        values = x[:, c]
        mean = (1 - share) * norm.running_mean[c] + share * values.mean()
        var = (1 - share) * norm.running_var[c] + share * ((values - values.mean()) ** 2).mean()
        z = (values - mean) / (var + 1e-3).sqrt()
        out.append(z * norm.weight[c] + norm.bias[c] if norm.affine else z)
        means.append(mean.detach())
        variances.append(var.detach())
    return torch.stack(out, 1), means, variances


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(("kind", "shape"), [(nn.BatchNorm2d, (5, 3, 4, 2)), (nn.BatchNorm1d, (5, 3))])
def test_equals_the_naive_one(kind: type[nn.Module], shape: tuple[int, ...], affine: bool) -> None:
    """Compare the value, the new statistics, and the gradients, which also flow through the batch's statistics."""
    norm = norm_of(kind, affine)
    robust = RobustNorm(norm, 0.3)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    assert torch.equal(robust(x), norm(x))
    before = robust.running_mean.clone()
    with learning_statistics(robust):
        got = robust(x)
    assert not robust.training
    expected, means, variances = naive(x, norm, 0.3)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(robust.running_mean, torch.stack(means))
    torch.testing.assert_close(robust.running_var, torch.stack(variances))
    assert torch.equal(norm.running_mean, before)  # the statistics are copies
    inputs = (x, *norm.parameters())
    for a, b in zip(torch.autograd.grad(got.pow(3).sum(), inputs), torch.autograd.grad(expected.pow(3).sum(), inputs)):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_one_value_is_enough() -> None:
    robust = RobustNorm(norm_of(nn.BatchNorm2d), 0.05).train()
    assert torch.isfinite(robust(torch.zeros(1, 3, 1, 1, dtype=torch.float64))).all()


def test_takes_the_place_of_every_batch_normalisation() -> None:
    net = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Sequential(nn.BatchNorm2d(3), nn.ReLU()), nn.BatchNorm2d(3)).eval()
    parameters, x = dict(net.named_parameters()), torch.rand(2, 3, 4, 4)
    expected = net(x)
    use_robust_norm(net, 0.05)
    assert [type(m) for m in (net[1][0], net[2])] == [RobustNorm, RobustNorm]
    assert {k: id(p) for k, p in net.named_parameters()} == {k: id(p) for k, p in parameters.items()}
    assert torch.equal(net(x), expected)
    names = [f"net.{layer}.running_{kind}" for layer in ("1.0", "2") for kind in ("mean", "var")]
    assert list(statistics(net, "net")) == names


class NormAct(nn.BatchNorm2d):
    """Like timm's layer, which also applies dropout and an activation."""

    def __init__(self) -> None:
        super().__init__(3)
        self.drop, self.act = nn.Dropout(0.5), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(x)))


def test_what_comes_with_it_stays() -> None:
    norm, x = NormAct().eval(), torch.randn(4, 3, 5, 5)
    robust = RobustNorm(norm, 0.05)
    assert torch.equal(robust(x), norm(x))
    with learning_statistics(robust):
        z = robust(x)
        assert not robust.after.training
    assert z.min() == 0
    assert 0.3 < (z > 0).float().mean() < 0.7  # dropout was off


def test_only_normalisation_trains_and_only_for_a_while() -> None:
    net = nn.Sequential(nn.Dropout(), nn.BatchNorm2d(3)).eval()
    with learning_statistics(net):
        assert [m.training for m in net] == [False, True]
    assert not net[1].training
    with pytest.raises(ValueError, match="more than 1 value per channel"), learning_statistics(net):
        net(torch.zeros(1, 3, 1, 1))
    assert not net[1].training
