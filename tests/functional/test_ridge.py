"""The ridge classifier stands at the minimum of the loss that it names."""

import torch

from itta.functional.ridge import ridge_classifier


def test_it_minimises_the_penalised_squares() -> None:
    g = torch.Generator().manual_seed(0)
    z, labels = torch.randn(60, 4, generator=g) * torch.tensor([1.0, 5.0, 0.1, 2.0]) + 3, torch.arange(60) % 3
    weight, bias = ridge_classifier(z, labels, 3, penalty=0.3)
    std = z.double().std(0, correction=0)
    w, b = (weight.double() * std).requires_grad_(), bias.double().requires_grad_()
    wanted = torch.nn.functional.one_hot(labels, 3).double()
    loss = (z.double() @ (w / std).T + b - wanted).square().sum() + 0.3 * 60 * w.square().sum()
    for gradient in torch.autograd.grad(loss, (w, b)):  # 0 at the minimum, up to the rounding of float32 weights
        assert float(gradient.abs().max()) < 2e-3


def test_a_column_that_never_changes_does_no_harm() -> None:
    z = torch.cat([torch.ones(20, 1), torch.arange(20.0).unsqueeze(1)], 1)
    weight, bias = ridge_classifier(z, (torch.arange(20) >= 10).long(), 2, penalty=0.01)
    assert torch.isfinite(weight).all()
    assert (((z @ weight.T + bias).argmax(1)) == (torch.arange(20) >= 10)).all()
