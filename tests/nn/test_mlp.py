"""The order and names of the layers, which saved models contain, and their initial weights."""

import pytest
import torch
from torch import Tensor, nn

from itta.nn.mlp import mlp


def written_out(x: Tensor, *linear: nn.Linear) -> Tensor:
    for layer in linear[:-1]:
        x = (x @ layer.weight.T + layer.bias).clamp(min=0)
    return x @ linear[-1].weight.T + linear[-1].bias


@pytest.mark.parametrize(("dropout", "places"), [(None, (0, 2, 4)), (0.0, (0, 3, 6)), (0.9, (0, 3, 6))])
def test_three_layers(dropout: float | None, places: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    network = mlp(5, 4, 3, 2, dropout=dropout).eval()
    torch.manual_seed(0)
    linear = [nn.Linear(5, 4), nn.Linear(4, 3), nn.Linear(3, 2)]
    expected = {f"{i}.{k}": p for i, layer in zip(places, linear) for k, p in layer.named_parameters()}
    assert list(network.state_dict()) == list(expected)
    assert all(torch.equal(p, expected[k]) for k, p in network.state_dict().items())
    x = torch.randn(6, 5)
    torch.testing.assert_close(network(x), written_out(x, *linear))


def test_dropout_is_between_the_layers_only() -> None:
    x = torch.randn(50, 5)
    assert (mlp(5, 2, dropout=0.5)(x) != 0).all()
    network = mlp(5, 4, 2, dropout=1.0)
    assert torch.equal(network(x), network[-1].bias.expand(50, 2))
