"""The moving average equals its formula, leaves the network alone, and goes on from where it was."""

import torch
from torch import nn

from itta.nn.averaged_weights import AveragedWeights, using_weights


def test_the_average_is_that_of_the_formula() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    average = AveragedWeights(net, decay=0.5)
    expected = net[0].weight.detach().clone()
    for step in (1, 2, 30):
        with torch.no_grad():
            net[0].weight.add_(torch.randn(3, 2))
            net[1].num_batches_tracked.add_(1)
        average.add(net, step)
        d = min(0.5, step / (step + 10))
        expected = d * expected + (1 - d) * net[0].weight.detach()
    assert torch.allclose(average.tensors["0.weight"], expected)
    assert average.tensors["1.num_batches_tracked"] == 3  # a whole number is copied


def test_the_network_gets_its_own_weights_back() -> None:
    net = nn.Linear(2, 2)
    own = net.weight.detach().clone()
    average = AveragedWeights(net, 0.9)
    average.tensors["weight"].zero_()
    with using_weights(net, average.tensors):
        assert not net.weight.any()
    assert torch.equal(net.weight, own)


def test_an_average_goes_on() -> None:
    net = nn.Linear(2, 2)
    whole, half = AveragedWeights(net, 0.9), AveragedWeights(net, 0.9)
    for step in (1, 2):
        with torch.no_grad():
            net.weight.mul_(2)
        whole.add(net, step)
        if step == 1:
            half.add(net, step)
    again = AveragedWeights(net, 0.9)
    again.load(half.tensors)
    again.add(net, 2)
    assert torch.equal(again.tensors["weight"], whole.tensors["weight"])
