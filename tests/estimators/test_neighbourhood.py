"""The support of similar images: groups of the same size, whatever the batches."""

import pytest
import torch

from itta.estimators.neighbourhood import GROUP, NEIGHBOURS, Neighbourhood
from itta.functional.answer_statistics import neighbour_support


def draw(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 6, generator=generator), torch.randn(n, 4, generator=generator).softmax(1)


@pytest.mark.parametrize("batch", [1, 7, 32, 100])
def test_the_batches_do_not_matter(batch: int) -> None:
    z, p = draw(100)
    found = Neighbourhood()
    for features, answers in zip(z.split(batch), p.split(batch)):
        found.add(features, answers)
    groups = [neighbour_support(z[i : i + 32], p[i : i + 32], p[i : i + 32].argmax(1), 5) for i in (0, 32, 64)]
    last = neighbour_support(z[68:], p[68:], p[68:].argmax(1), 5)[-4:]  # looks back, as 4 images are no group
    assert found.support == pytest.approx(float(torch.cat([*groups, last]).mean()))
    assert len(found.features) <= 2 * GROUP


def test_few_images() -> None:
    z, p = draw(3)
    found = Neighbourhood()
    assert found.support is None
    found.add(z[:1], p[:1])
    assert found.support is None
    found.add(z[1:], p[1:])
    others = [p[[j for j in range(3) if j != i], p[i].argmax()].mean() for i in range(3)]
    assert found.support == pytest.approx(float(torch.stack(others).mean()))  # both others are neighbours
    assert len(z) < NEIGHBOURS


def test_images_alike_support_each_other() -> None:
    """Two clusters: answers that follow them have more support than answers that do not."""
    cluster = torch.arange(64) % 2
    z = torch.eye(2)[cluster] + 0.1 * draw(64)[0][:, :2]
    supports = []
    for answers in (cluster, torch.randint(2, (64,), generator=torch.Generator().manual_seed(1))):
        found = Neighbourhood()
        found.add(z, 0.8 * torch.eye(2)[answers] + 0.1)
        supports.append(found.support)
    follows, chance = supports
    assert follows is not None
    assert chance is not None
    assert follows == pytest.approx(0.9)
    assert chance < 0.7
