from pathlib import Path

import numpy as np
from PIL import Image

from itta.explain.training_logs import plot_curves


def height(path: Path) -> int:
    with Image.open(path) as image:
        return image.size[1]


def test_one_panel_for_each_quantity(tmp_path: Path) -> None:
    steps = np.arange(1, 41)
    loss, cosine = (steps, np.linspace(3, 1, 40)), (steps, np.sin(steps))
    one = plot_curves(tmp_path / "a.png", {"loss": loss})
    two = plot_curves(tmp_path / "b.png", {"loss": loss, "cosine": cosine})
    assert height(two) > 1.5 * height(one)
