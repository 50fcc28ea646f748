"""itta.collect: the statistics of the source data for a wrapped network, by hand and as training collects them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import itta
from itta.errors import InputError
from itta.functional.priors import mean_answers
from itta.nn.style_mixing import style
from tests.fixtures.networks import TokenNetwork, sequential_cnn


def images(n: int, seed: int) -> Tensor:
    return torch.rand(n, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return sequential_cnn().eval()


def test_styles_confusions_and_prior(net: nn.Module) -> None:
    x, y = images(10, 0), torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 2, 2])
    model = itta.collect(itta.wrap(net, image_size=16), {"one": [(x[:6], y[:6]), (x[6:], y[6:])], "two": [(x, y)]})
    bank, known = model.style_bank, model.confusions
    assert bank is not None
    assert known is not None
    assert bank.domains == ("one", "two")
    assert list(bank.mean) == ["2", "5"]  # the first two blocks
    with torch.no_grad():
        mean, std = style(net[:3](x))
        logits = net(x)
    torch.testing.assert_close(bank.mean["2"], mean.flatten(1).repeat(2, 1))
    torch.testing.assert_close(bank.std["2"], std.flatten(1).repeat(2, 1))
    torch.testing.assert_close(known["prior"], torch.tensor([0.5, 0.3, 0.2]))
    expected = mean_answers(logits.repeat(2, 1) / known["temperature"], y.repeat(2))
    torch.testing.assert_close(known["mean"], expected)
    assert model.fisher is None  # no batch normalisation


def test_images_alone_and_no_more_than_asked_for(net: nn.Module) -> None:
    drawn = []

    def endless() -> Any:
        while True:
            drawn.append(1)
            yield images(4, len(drawn))

    model = itta.collect(itta.wrap(net, image_size=16), endless(), images=10)
    assert model.confusions is None
    assert model.style_bank is not None
    assert len(model.style_bank) == 10
    assert len(drawn) == 3


def test_tokens_have_styles_too() -> None:
    torch.manual_seed(0)
    model = itta.collect(itta.wrap(TokenNetwork().eval(), image_size=16), [images(4, 0)])
    assert model.style_bank is not None
    assert model.style_bank.mean["layers_0"].shape == (4, 16)


def test_fisher_of_batch_normalisation() -> None:
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    model = itta.collect(itta.wrap(nn.Sequential(*layers).eval(), image_size=16), [images(6, 0)])
    assert model.fisher is not None
    assert all(float(f.sum()) > 0 for f in model.fisher.values())
    assert itta.adapt(model, "eata")(images(4, 1)).shape == (4, 2)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "no source images"),
        ({"one": []}, "no source images"),
        ([torch.zeros(3, 16, 16)], r"expected batches of images \[B, 3, H, W\].*\(3, 16, 16\)"),
        ([torch.zeros(2, 3, 16, 16, dtype=torch.uint8)], "as floats in .0, 1., got torch.uint8"),
        (["photo.png"], "got str"),
        ([(torch.zeros(2, 3, 16, 16), torch.zeros(3).long())], "one whole number for each of 2 images"),
        ([(torch.zeros(2, 3, 16, 16), torch.tensor([0, 7]))], "expected labels from 0 to 2, got 0 to 7"),
    ],
)
def test_what_does_not_fit_is_one_line(net: nn.Module, batches: Any, message: str) -> None:
    model = itta.wrap(net, image_size=16)
    with pytest.raises(InputError, match=message):
        itta.collect(model, batches)
    assert model.confusions is None
