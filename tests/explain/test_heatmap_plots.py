"""Figures are looked at: colours where they belong."""

from pathlib import Path

import numpy as np
from PIL import Image

from itta.explain.heatmap_plots import plot_heats


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def colour_at(image: np.ndarray, which: np.ndarray) -> float:
    """Mean column of the pixels chosen."""
    return float(np.nonzero(which)[1].mean())


def test_red_where_positive_and_blue_where_negative(tmp_path: Path) -> None:
    heat = np.ones((1, 8, 8))
    heat[:, :, 4:] = -1
    image = pixels(plot_heats(tmp_path / "a.png", np.ones((1, 8, 8, 3)), ["x"], {"main": heat}, "title"))
    red, blue = image[..., 0] - image[..., 2] > 30, image[..., 2] - image[..., 0] > 30
    assert red.sum() > 1000
    assert blue.sum() > 1000
    assert colour_at(image, red) < colour_at(image, blue)


def test_a_map_without_heat_is_left_bare(tmp_path: Path) -> None:
    image = pixels(plot_heats(tmp_path / "a.png", np.ones((1, 8, 8, 3)), ["x"], {"main": np.zeros((1, 8, 8))}, ""))
    assert (image.max(2) - image.min(2)).max() == 0  # no colour at all
    warm = np.zeros((1, 8, 8))
    warm[0, 0, 0] = 1
    image = pixels(plot_heats(tmp_path / "b.png", np.ones((1, 8, 8, 3)), ["x"], {"main": warm}, ""))
    assert (image.max(2) - image.min(2)).max() > 60
