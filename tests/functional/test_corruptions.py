"""Corruptions of images: range, strength and the draw."""

import pytest
import torch

from itta.functional.corruptions import CORRUPTIONS, recolour


@pytest.fixture
def images() -> torch.Tensor:
    """Smooth, so that a larger turn changes more."""
    coarse = torch.rand(4, 3, 3, 4, generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.interpolate(coarse, size=(16, 24), mode="bilinear")


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_every_corruption_keeps_form_and_range_and_grows(name: str, images: torch.Tensor) -> None:
    def apply(strength: float) -> torch.Tensor:
        return CORRUPTIONS[name](images.clone(), strength, torch.Generator().manual_seed(1))

    weak, strong = apply(0.3), apply(0.9)
    for x in (weak, strong):
        assert x.shape == images.shape
        assert 0 <= float(x.min()) <= float(x.max()) <= 1
    assert torch.allclose(apply(0.0), images, atol=1e-4)
    assert torch.equal(strong, apply(0.9))  # the draw comes from the generator alone
    assert float((strong - images).abs().mean()) > float((weak - images).abs().mean()) > 0


def test_recolour_gives_the_colours_of_the_partner(images: torch.Tensor) -> None:
    x, partner = 0.4 + 0.1 * images, 0.5 + 0.05 * images.flip(0)
    found = recolour(x, partner, 1.0)
    assert torch.allclose(found.mean((2, 3)), partner.mean((2, 3)), atol=1e-3)
    assert torch.allclose(found.std((2, 3)), partner.std((2, 3)), rtol=0.1)
    assert torch.allclose(recolour(x, partner, 0.0), x, atol=1e-5)
