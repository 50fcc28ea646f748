import numpy as np
import pytest
import torch

from itta.data.dataset import DomainDataset, split, target_indices
from itta.errors import InputError


class Fake:
    """Images of one colour each, held in memory."""

    def __init__(self, n: int, labels: list[int] | None = None, groups: list[str] | None = None) -> None:
        self.labels = np.array(labels if labels is not None else [0] * n, dtype=np.int64)
        self.names = [str(i) for i in range(n)]
        self.groups = groups
        self._n = n

    def __len__(self) -> int:
        return self._n

    def read(self, indices):
        return torch.stack([torch.full((3, 4, 4), int(i), dtype=torch.uint8) for i in indices])


def dataset(strict: bool = False, **domains: Fake) -> DomainDataset:
    return DomainDataset("fake", ("cat", "dog"), domains, image_size=4, strict=strict)


def test_split_is_domainbeds() -> None:
    cut = split(dataset(a=Fake(10)), trial_seed=0)["a"]
    assert cut.held_out.tolist() == [2, 3]
    assert cut.train.tolist() == [8, 1, 4, 5, 0, 9, 6, 7]


def test_split_depends_on_the_place_of_the_domain_and_on_the_trial() -> None:
    cuts = split(dataset(a=Fake(50), b=Fake(50)), trial_seed=0)
    assert cuts["a"].train.tolist() != cuts["b"].train.tolist()
    assert cuts["a"].train.tolist() != split(dataset(a=Fake(50)), trial_seed=1)["a"].train.tolist()
    assert sorted([*cuts["b"].train, *cuts["b"].held_out]) == list(range(50))


@pytest.mark.parametrize("holdout", [-0.1, 1.0])
def test_split_refuses_a_holdout_that_is_no_share(holdout: float) -> None:
    with pytest.raises(InputError, match="holdout"):
        split(dataset(a=Fake(10)), 0, holdout)


def test_strict_holds_the_same_third_of_identities_out_of_every_domain() -> None:
    first, second = list("abcdefghi"), list("ihgfedcbaa")
    data = dataset(strict=True, x=Fake(9, groups=first), y=Fake(10, groups=second))
    cuts = split(data, trial_seed=0)
    held = {first[i] for i in cuts["x"].held_out}
    assert len(held) == 3
    assert {second[i] for i in cuts["y"].held_out} == held
    assert not {second[i] for i in cuts["y"].train} & held
    assert target_indices(data, "y", 0).tolist() == cuts["y"].held_out.tolist()


def test_strict_hands_out_different_identities_to_different_trials() -> None:
    data = dataset(strict=True, x=Fake(26, groups=list("abcdefghijklmnopqrstuvwxyz")))
    assert split(data, 0)["x"].held_out.tolist() != split(data, 1)["x"].held_out.tolist()


def test_a_target_is_evaluated_whole() -> None:
    assert target_indices(dataset(a=Fake(3)), "a", 0).tolist() == [0, 1, 2]


def test_a_domain_is_found_by_name() -> None:
    data = dataset(sketch=Fake(3))
    assert data.domain("sketch") is data.domains["sketch"]
    with pytest.raises(InputError, match="unknown domain 'sketsh'.*'sketch'"):
        data.domain("sketsh")


def test_a_data_set_without_domains_is_refused() -> None:
    with pytest.raises(InputError, match="no domains"):
        dataset()


@pytest.mark.parametrize(
    ("images", "strict", "message"),
    [
        (Fake(0), False, "'a'.*no images"),
        (Fake(2, labels=[0, 2]), False, "labels from 0 to 2.*cat, dog"),
        (Fake(2, labels=[-1, 0]), False, "labels from -1"),
        (Fake(2, labels=[0]), False, "2 images but 1 labels"),
        (Fake(2, groups=["x"]), False, "2 images but 1 groups"),
        (Fake(2), True, "identity.*strict=False"),
    ],
)
def test_a_wrong_domain_is_refused(images: Fake, strict: bool, message: str) -> None:
    with pytest.raises(InputError, match=message):
        dataset(strict, a=images)
