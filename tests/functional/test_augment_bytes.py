"""The fast augmentation against the plain one: the crop agrees to 8 bits, the colours to rounding error."""

from dataclasses import replace

import pytest
import torch

from itta.functional import augment_bytes as module
from itta.functional.augment import Augmentation, augment, draw_augmentation, no_augmentation, to_float
from itta.functional.augment_bytes import augment_bytes, whole_pixels

N, S = 6, 12


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randint(0, 256, (N, 3, S, S), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def drawn(seed: int = 0) -> Augmentation:
    return draw_augmentation(N, torch.Generator().manual_seed(seed))


def uncropped(seed: int) -> Augmentation:
    return replace(drawn(seed), box=no_augmentation(N).box)


def assert_close(actual: torch.Tensor, expected: torch.Tensor, atol: float = 2e-5) -> None:
    torch.testing.assert_close(actual, expected, atol=atol, rtol=0)


def test_no_augmentation_changes_nothing(images: torch.Tensor) -> None:
    assert_close(augment_bytes(images, no_augmentation(N)), to_float(images), atol=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_colours_and_mirror_are_those_of_augment(images: torch.Tensor, seed: int) -> None:
    assert_close(augment_bytes(images, uncropped(seed)), augment(images, uncropped(seed)))


@pytest.mark.parametrize("turn", [-0.5, -1 / 3, -0.3, -1 / 6, -0.1, 0.0, 0.05, 1 / 6, 0.2, 0.3, 0.49, 0.75])
def test_any_turn_of_the_hue(images: torch.Tensor, turn: float) -> None:
    images[0, :, 0, :4] = torch.tensor([[0, 255, 255, 7], [0, 255, 0, 7], [0, 255, 0, 200]], dtype=torch.uint8)
    images[1, 2] = images[1, 1]  # two channels equal: the hue at which the sign changes
    turned = replace(no_augmentation(N), hue=torch.full((N,), turn))
    assert_close(augment_bytes(images, turned), augment(images, turned))


@pytest.mark.parametrize("field", ["brightness", "contrast", "saturation"])
@pytest.mark.parametrize("factor", [0.0, 0.7, 1.3, 2.0])
def test_each_factor_below_and_above_one(images: torch.Tensor, field: str, factor: float) -> None:
    changed = replace(no_augmentation(N), **{field: torch.full((N,), factor)})
    assert_close(augment_bytes(images, changed), augment(images, changed))


def test_the_crop_is_that_of_augment_in_8_bits(images: torch.Tensor) -> None:
    box = torch.tensor([[0, 0, 9, 12], [3, 2, 9, 10], [2, 1, 8, 11], [0, 0, 12, 12], [5, 5, 7, 7], [1, 0, 11, 12]]) / S
    flip = torch.tensor([True, False, True, False, True, False])
    cropped = replace(no_augmentation(N), box=box, flip=flip)
    found = augment_bytes(images, cropped)
    assert_close(found, augment(images, cropped), atol=1.01 / 255)  # rounded after the rows and after the columns
    assert_close(found * 255, (found * 255).round(), atol=1e-3)


def test_boxes_are_rounded_and_stay_inside() -> None:
    for seed in range(20):
        for share, (top, left, height, width) in zip(drawn(seed).box.tolist(), whole_pixels(drawn(seed).box, S)):
            assert all(abs(s * S - p) <= 1 for s, p in zip(share, (top, left, height, width)))
            assert 0 <= top <= S - height
            assert 0 <= left <= S - width
    assert whole_pixels(torch.tensor([[0.999, 0.999, 0.001, 0.001]]), S) == [[11, 11, 1, 1]]


@pytest.mark.parametrize("seed", range(5))
def test_grey_images_take_a_short_cut_to_the_same_result(images: torch.Tensor, seed: int) -> None:
    grey = images[:, :1].expand(-1, 3, -1, -1).contiguous()
    assert_close(augment_bytes(grey, uncropped(seed)), augment(grey, uncropped(seed)))
    spot = grey.clone()
    spot[:, 2, 0, 0] = 255 - spot[:, 2, 0, 0]  # all but one pixel grey
    assert_close(augment_bytes(spot, uncropped(seed)), augment(spot, uncropped(seed)))


def test_parts_make_the_whole(images: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = augment_bytes(images, drawn())
    monkeypatch.setattr(module, "_PART", 50)
    assert_close(augment_bytes(images, drawn()), whole, atol=1e-6)


def test_layout_does_not_matter_and_the_input_stays(images: torch.Tensor) -> None:
    before = images.clone()
    found = augment_bytes(images, drawn())
    assert torch.equal(augment_bytes(images.contiguous(memory_format=torch.channels_last), drawn()), found)
    assert torch.equal(images, before)
    assert (found.dtype, found.is_contiguous()) == (torch.float32, True)


def test_the_result_is_in_range(images: torch.Tensor) -> None:
    for seed in range(20):
        found = augment_bytes(images, drawn(seed))
        assert found.min() >= -1e-6
        assert found.max() <= 1 + 1e-6
