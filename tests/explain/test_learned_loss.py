"""The shape of f_w, in numbers and as a figure."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

import itta
from itta.explain.learned_loss import Sampled, describe_f_w, f_w_inputs, plot_f_w, sample_f_w
from itta.nn.affine_stack import AffineStack


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def test_the_range_of_inputs_is_stored_with_the_model(model: Path) -> None:
    trained = itta.load(model)
    assert trained.differences is not None
    low, high = trained.differences["low"], trained.differences["high"]
    assert low.shape == high.shape == (trained.backbone.dim,)
    assert (low <= high).all()
    assert (low < 0).any()
    assert (high > 0).any()
    h, seen = f_w_inputs(trained, 1.0)
    assert seen
    torch.testing.assert_close(h[0], low.clamp(max=0))
    torch.testing.assert_close(h[-1], high.clamp(min=0))


def test_the_ends_tell_which_dimensions_are_dead() -> None:
    """Against the slopes between 4,001 points, on stacks shaken until all kinds occur."""
    torch.manual_seed(0)
    dims, seen = 400, set()
    for depth in (1, 2, 5):
        f_w = AffineStack((dims,), depth).double()
        with torch.no_grad():
            for p in f_w.parameters():
                p.add_(torch.randn_like(p))
        low, high = -torch.rand(dims).double(), torch.rand(dims).double()
        low[:5] = high[:5] = 0
        h = low + (high - low) * torch.linspace(0, 1, 4001).double()[:, None]
        sampled = f_w(h).detach()
        found = describe_f_w(f_w, Sampled(h, sampled, sampled))
        zero = f_w(torch.zeros(dims).double()).detach()
        below, above = (((sampled != zero) & side).any(0) for side in (h < 0, h > 0))
        expected = {
            "input always 0": 5,
            "constant (dead)": int((~below & ~above).sum()) - 5,
            "answers h > 0 only": int((~below & above).sum()),
            "answers h < 0 only": int((below & ~above).sum()),
            "answers both": int((below & above).sum()),
        }
        assert found["kinds"] == expected
        assert found["dead"] == expected["constant (dead)"]
        assert sum(expected.values()) == dims
        seen |= {kind for kind, n in expected.items() if n}
    assert len(seen) == 5


def test_a_fresh_f_w_has_not_changed(model: Path) -> None:
    trained = itta.load(model)
    trained.f_w.restart()
    h, _ = f_w_inputs(trained, 1.0)
    found = describe_f_w(trained.f_w, sample_f_w(trained.f_w, h))
    assert found["change_since_start"] == 0
    assert found["at_zero"] == {"mean": 0.0, "largest": 0.0}
    assert found["kinds"]["answers both"] == found["kinds"]["answers h < 0 only"] == 0


def test_f_w_is_drawn_over_where_it_began(tmp_path: Path) -> None:
    h = torch.from_numpy(np.linspace([-1.0, -0.5], [1.0, 0.5], 11))
    start = h.clamp(min=0)
    image = pixels(plot_f_w(tmp_path / "a.png", Sampled(h, 2 * start, start), {"dead": 1, "both": 1}, "f_w"))
    assert (image[..., 2] - image[..., 0] > 40).sum() > 100
