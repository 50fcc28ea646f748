"""Which images look like the sources, and what the frozen form makes of it."""

import numpy as np
import pytest
import torch
from torch import Tensor

from itta.adapters.familiarity import Familiarity, FrozenFamiliarity, SourceStyles
from itta.adapters.target_style import flat_styles, styles_of


def maps(n: int, shift: float = 0.0, contrast: float = 1.0, seed: int = 0) -> Tensor:
    """Outputs of a block, [n, 4, 5, 5], with a style of their own in each image."""
    drawn = torch.Generator().manual_seed(seed)
    own = 0.2 * torch.randn(n, 4, 1, 1, generator=drawn)
    z = torch.randn(n, 4, 5, 5, generator=drawn) + own + shift
    return (contrast * z).double()


def rows_of(z: Tensor) -> np.ndarray:
    """The styles of images, laid out in rows."""
    return flat_styles(styles_of(z)).numpy()


@pytest.fixture
def sources() -> SourceStyles:
    styles = torch.cat([styles_of(maps(300, seed=1)), styles_of(maps(300, shift=4.0, seed=2))])
    return SourceStyles(styles, torch.tensor([0] * 300 + [1] * 300))


def test_the_distance_is_about_one_in_each_source_and_grows_between_them(sources: SourceStyles) -> None:
    at_home = [sources.distances(rows_of(maps(400, shift=s, seed=9))).mean() for s in (0.0, 4.0)]
    assert at_home == pytest.approx([1, 1], abs=0.1)
    between, beyond, pale = (
        sources.distances(rows_of(maps(400, shift, contrast, seed=9))).mean()
        for shift, contrast in ((2.0, 1.0), (9.0, 1.0), (0.0, 0.3))
    )
    assert beyond > between > 5
    assert pale > 5


def test_it_is_the_written_formula(sources: SourceStyles) -> None:
    distances = np.array([0.5, 1.2, 3.0, 1.0])
    familiar = Familiarity(near=1.1, far=1.5, start=2.0, memory=10)
    found, total, weight = [], 2.0, 2.0
    for d in distances:
        total, weight = 0.9 * total + d, 0.9 * weight + 1
        found.append(max(min(max((1.5 - v) / 0.4, 0.0), 1.0) for v in (d, total / weight)))
    torch.testing.assert_close(familiar(distances), torch.tensor(found, dtype=torch.double))
    assert familiar.distance == pytest.approx(total / weight)


def test_batches_do_not_matter_if_the_images_are_in_order() -> None:
    distances = np.linspace(0.8, 2.5, 12)
    one, many = (Familiarity(1.1, 1.5, 16.0, 1000) for _ in range(2))
    each = torch.cat([one(distances[i : i + 1]) for i in range(12)])
    torch.testing.assert_close(each, many(distances))


def test_without_an_order_it_does_not_depend_on_the_order() -> None:
    distances = np.array([1.0, 4.0, 1.2, 1.3])
    one, other = (Familiarity(1.1, 1.5, 1.0, 1000) for _ in range(2))
    torch.testing.assert_close(one(distances, ordered=False), other(distances[::-1].copy(), ordered=False).flip(0))


def test_a_few_strange_images_do_not_make_a_stream_strange() -> None:
    """An image may look like the sources by itself, or because its stream does."""
    familiar = Familiarity(1.1, 1.5, 16.0, 1000)
    assert familiar(np.ones(50)).tolist() == [1.0] * 50
    assert familiar(np.array([5.0]))[0] > 0.9
    assert familiar(np.full(60, 5.0))[-1] == 0
    assert familiar(np.array([1.0]))[0] == 1
    familiar.reset()
    assert familiar.distance == 1


def test_it_goes_on_from_its_state() -> None:
    familiar, other = (Familiarity(1.1, 1.5, 16.0, 1000) for _ in range(2))
    familiar(np.array([3.0, 2.0, 4.0]))
    other.load_state_dict(familiar.state_dict())
    torch.testing.assert_close(familiar(np.array([1.4])), other(np.array([1.4])), rtol=0, atol=0)


@pytest.mark.parametrize("tokens", [False, True])
def test_the_frozen_form_gives_the_same(tokens: bool, sources: SourceStyles) -> None:
    z = torch.cat([maps(20, shift=s, seed=5) for s in (0.0, 0.4, 0.8, 4.0)])
    familiar = Familiarity(1.0, 9.0, 16.0, 1000)
    familiar(np.full(400, 8.0))
    frozen = FrozenFamiliarity(sources, familiar)
    expected = np.maximum(familiar.share(sources.distances(rows_of(z))), familiar.share(np.array(familiar.distance)))
    found = frozen(z.flatten(2).transpose(1, 2) if tokens else z)
    torch.testing.assert_close(found, torch.from_numpy(expected).unsqueeze(1), rtol=1e-6, atol=1e-6)
    assert 0 < found.min() < 0.5 < found.max()
