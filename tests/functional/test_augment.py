import colorsys
from dataclasses import fields, replace

import pytest
import torch
import torch.nn.functional as F

from itta.functional.augment import Augmentation, augment, draw_augmentation, no_augmentation, to_float

N, S = 5, 12


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randint(0, 256, (N, 3, S, S), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def drawn(n: int = N, seed: int = 0) -> Augmentation:
    return draw_augmentation(n, torch.Generator().manual_seed(seed))


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=0)


def luma(image: torch.Tensor) -> torch.Tensor:
    return 0.299 * image[0] + 0.587 * image[1] + 0.114 * image[2]


def test_no_augmentation_changes_nothing(images: torch.Tensor) -> None:
    assert_close(augment(images, no_augmentation(N)), to_float(images))


def test_to_float_spans_zero_to_one() -> None:
    values = to_float(torch.tensor([0, 51, 255], dtype=torch.uint8))
    torch.testing.assert_close(values, torch.tensor([0.0, 0.2, 1.0]))


@pytest.mark.parametrize(("top", "left", "height", "width"), [(0, 0, 9, 12), (3, 2, 9, 10), (2, 1, 8, 11)])
def test_crop_is_the_slice_scaled_up(images: torch.Tensor, top: int, left: int, height: int, width: int) -> None:
    box = (torch.tensor([top, left, height, width]) / S).expand(N, 4)
    cut = to_float(images)[:, :, top : top + height, left : left + width]
    expected = F.interpolate(cut, size=(S, S), mode="bilinear", align_corners=False)
    assert_close(augment(images, replace(no_augmentation(N), box=box)), expected)


def test_each_image_has_its_own_box(images: torch.Tensor) -> None:
    box = drawn().box
    together = augment(images, replace(no_augmentation(N), box=box))
    alone = [augment(images[i : i + 1], replace(no_augmentation(1), box=box[i : i + 1])) for i in range(N)]
    assert_close(together, torch.cat(alone))


def test_flip_mirrors_only_the_chosen(images: torch.Tensor) -> None:
    flip = torch.tensor([True, False, True, False, False])
    expected = torch.stack([x.flip(-1) if f else x for x, f in zip(to_float(images), flip)])
    assert_close(augment(images, replace(no_augmentation(N), flip=flip)), expected)


def test_brightness(images: torch.Tensor) -> None:
    factor = drawn().brightness
    expected = torch.stack([(x * f).clamp(0, 1) for x, f in zip(to_float(images), factor)])
    assert_close(augment(images, replace(no_augmentation(N), brightness=factor)), expected)


def test_contrast(images: torch.Tensor) -> None:
    factor = drawn().contrast
    expected = torch.stack([(f * x + (1 - f) * luma(x).mean()).clamp(0, 1) for x, f in zip(to_float(images), factor)])
    assert_close(augment(images, replace(no_augmentation(N), contrast=factor)), expected)


def test_saturation(images: torch.Tensor) -> None:
    factor = drawn().saturation
    expected = torch.stack([(f * x + (1 - f) * luma(x)).clamp(0, 1) for x, f in zip(to_float(images), factor)])
    assert_close(augment(images, replace(no_augmentation(N), saturation=factor)), expected)


def test_hue_is_that_of_colorsys(images: torch.Tensor) -> None:
    images[0, :, 0, :4] = torch.tensor([[0, 255, 255, 7], [0, 255, 0, 7], [0, 255, 0, 200]], dtype=torch.uint8)
    turn = torch.tensor([-0.3, -0.1, 0.0, 0.2, 0.3])
    actual = augment(images, replace(no_augmentation(N), hue=turn))
    x = to_float(images)
    for i in range(N):
        for row, column in [(0, c) for c in range(S)] + [(r, 5) for r in range(S)]:
            hue, saturation, value = colorsys.rgb_to_hsv(*x[i, :, row, column].tolist())
            expected = colorsys.hsv_to_rgb((hue + turn[i].item()) % 1, saturation, value)
            assert_close(actual[i, :, row, column], torch.tensor(expected))


def test_grey(images: torch.Tensor) -> None:
    grey = torch.tensor([False, True, False, False, True])
    expected = torch.stack([luma(x).expand(3, S, S) if g else x for x, g in zip(to_float(images), grey)])
    assert_close(augment(images, replace(no_augmentation(N), grey=grey)), expected)


def test_the_result_stays_in_range_and_the_input_as_it_was(images: torch.Tensor) -> None:
    before = images.clone()
    for seed in range(20):
        out = augment(images, drawn(seed=seed))
        assert out.dtype == torch.float32
        assert out.shape == images.shape
        assert out.min() >= -1e-6
        assert out.max() <= 1 + 1e-6
    assert torch.equal(images, before)


def test_draws_have_domainbeds_ranges_and_shares() -> None:
    n = 20_000
    draw = drawn(n)
    top, left, height, width = draw.box.unbind(1)
    area, ratio = height * width, width / height
    assert (draw.box >= 0).all()
    assert (top + height <= 1 + 1e-6).all()
    assert (left + width <= 1 + 1e-6).all()
    assert 0.7 - 1e-5 <= area.min() < 0.71
    assert 0.75 - 1e-5 <= ratio.min() < 0.77
    assert 1.30 < ratio.max() <= 4 / 3 + 1e-5
    assert abs(ratio.log().mean()) < 0.01
    for factor in (draw.brightness, draw.contrast, draw.saturation, draw.hue + 1):
        assert 0.7 <= factor.min() < 0.71
        assert 1.29 < factor.max() <= 1.3
        assert abs(factor.mean() - 1) < 0.01
    assert abs(draw.flip.float().mean() - 0.5) < 0.02
    assert abs(draw.grey.float().mean() - 0.1) < 0.01


def test_the_draw_is_the_generators() -> None:
    for field in fields(Augmentation):
        assert torch.equal(getattr(drawn(), field.name), getattr(drawn(), field.name))
    assert not torch.equal(drawn(seed=1).box, drawn(seed=2).box)


def test_floats_give_what_bytes_give():
    images = torch.randint(256, (6, 3, 9, 9), dtype=torch.uint8)
    drawn = draw_augmentation(6, torch.Generator().manual_seed(0))
    expected = augment(images, drawn)
    assert torch.equal(augment(to_float(images), drawn), expected)
    assert torch.allclose(augment(images.double() / 255, drawn), expected.double(), atol=1e-5)
