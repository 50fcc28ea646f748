"""The order in which a target's images arrive. It decides whether online adaptation is easy or hard.

An order is drawn from labels and a seed alone, before any image is read; a reader may start at any place of it. Labels
shape the order and nothing else: no adapter sees them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from itta.errors import InputError, unknown
from itta.seeds import derive_seed

SLOTS = 10  # parts of a stream over which the Dirichlet law spreads each class
RUN = 3  # images of a class that come together, on average, in short runs
ROUNDS = 3  # visits to each domain, where domains recur


@dataclass(frozen=True)
class Order:
    """Which image comes when: the number of its domain and its index there."""

    domain: np.ndarray  # [N]
    index: np.ndarray  # [N]

    def __len__(self) -> int:
        return len(self.domain)

    def batch(self, number: int, size: int) -> "Order":
        """The images of a batch, counted from 0; the last one may be short."""
        part = slice(number * size, (number + 1) * size)
        return Order(self.domain[part], self.index[part])


def draw_order(
    labels: Mapping[str, np.ndarray],
    classes: str = "iid",
    domains: str = "in_turn",
    seed: int = 0,
    concentration: float = 0.1,
) -> Order:
    """Draw an order over the images of the named domains, each image once.

    Within a domain: ``iid``; ``sorted``, one class after another; ``dirichlet``, classes in clusters, the fewer at a
    time the smaller the concentration; ``runs``, a few images of a class at a time; ``zipf1`` and ``zipf2``, in random
    order, the k-th class k or k² times as rare as the first, for which some images are left out. Domains: ``in_turn``;
    ``gradual``, the share of the next one growing; ``mixed``; ``recurring``, each in turn, several times.
    """
    for value, table in ((classes, CLASS_ORDERS), (domains, DOMAIN_ORDERS)):
        if value not in table:
            raise unknown("order", value, list(table))
    if not concentration > 0:
        raise InputError(f"concentration must be above 0, got {concentration}.")
    within = []
    for name, y in labels.items():
        rng = np.random.RandomState(derive_seed(seed, "order", name))
        within.append(order_classes(np.asarray(y), classes, concentration, rng))
    rng = np.random.RandomState(derive_seed(seed, "domains"))
    sequence = DOMAIN_ORDERS[domains]([len(indices) for indices in within], rng)
    index = np.empty(len(sequence), dtype=np.int64)
    for number, indices in enumerate(within):
        index[sequence == number] = indices
    return Order(sequence, index)


def order_classes(y: np.ndarray, classes: str, concentration: float, rng: np.random.RandomState) -> np.ndarray:
    """The images of one domain in the order in which they come."""
    return CLASS_ORDERS[classes](y, concentration, rng)


def iid(y: np.ndarray, concentration: float, rng: np.random.RandomState) -> np.ndarray:
    return rng.permutation(len(y))


def by_class(y: np.ndarray, rng: np.random.RandomState) -> list[np.ndarray]:
    """The images of each class, shuffled; the classes in random order."""
    shuffled = rng.permutation(len(y))
    return [shuffled[y[shuffled] == name] for name in rng.permutation(np.unique(y))]


def one_after_another(y: np.ndarray, concentration: float, rng: np.random.RandomState) -> np.ndarray:
    return np.concatenate(by_class(y, rng))


def in_clusters(y: np.ndarray, concentration: float, rng: np.random.RandomState) -> np.ndarray:
    slots: list[list[np.ndarray]] = [[] for _ in range(SLOTS)]
    for indices in by_class(y, rng):
        ends = np.round(np.cumsum(rng.dirichlet([concentration] * SLOTS)) * len(indices)).astype(int)
        for slot, part in zip(slots, np.split(indices, ends[:-1])):
            slot.append(part)
    return np.concatenate([part for slot in slots for part in (slot[i] for i in rng.permutation(len(slot)))])


def in_runs(y: np.ndarray, concentration: float, rng: np.random.RandomState) -> np.ndarray:
    runs: list[np.ndarray] = []
    for indices in by_class(y, rng):
        cuts = np.cumsum(rng.geometric(1 / RUN, len(indices)))
        runs += [run for run in np.split(indices, cuts[cuts < len(indices)]) if len(run) > 0]
    return np.concatenate([runs[i] for i in rng.permutation(len(runs))])


def unequal(y: np.ndarray, exponent: float, rng: np.random.RandomState) -> np.ndarray:
    """As many images as Zipf's law allows: of the k-th class k^exponent times fewer than of the first."""
    of_class = by_class(y, rng)
    law = np.arange(1, len(of_class) + 1) ** -exponent
    scale = min(len(indices) / share for indices, share in zip(of_class, law))
    counts = np.floor(scale * law + 1e-9).astype(int)
    return rng.permutation(np.concatenate([indices[:n] for indices, n in zip(of_class, counts)]))


# name -> (labels, concentration of the Dirichlet law, generator) -> the images in their order
CLASS_ORDERS: dict[str, Callable[[np.ndarray, float, np.random.RandomState], np.ndarray]] = {
    "iid": iid,
    "sorted": one_after_another,
    "dirichlet": in_clusters,
    "runs": in_runs,
    "zipf1": lambda y, concentration, rng: unequal(y, 1.0, rng),
    "zipf2": lambda y, concentration, rng: unequal(y, 2.0, rng),
}
WHOLE_ORDERS = ("iid", "sorted", "dirichlet", "runs")  # with every image once, so accuracies compare


def in_turn(sizes: Sequence[int], rng: np.random.RandomState) -> np.ndarray:
    return np.repeat(np.arange(len(sizes)), sizes)


def mixed(sizes: Sequence[int], rng: np.random.RandomState) -> np.ndarray:
    return rng.permutation(in_turn(sizes, rng))


def recurring(sizes: Sequence[int], rng: np.random.RandomState) -> np.ndarray:
    """Each domain in turn with a share of its images, as many times as there are rounds."""
    shares = [[len(part) for part in np.array_split(np.arange(n), ROUNDS)] for n in sizes]
    return np.concatenate([in_turn([share[k] for share in shares], rng) for k in range(ROUNDS)])


def gradual(sizes: Sequence[int], rng: np.random.RandomState) -> np.ndarray:
    """In turn, but each image's place is shifted at random by up to half a domain, so that neighbours overlap."""
    sequence = in_turn(sizes, rng)
    if len(sizes) < 2:
        return sequence
    reach = np.asarray(sizes)[sequence] / 2
    places = np.arange(len(sequence)) + rng.uniform(-1, 1, len(sequence)) * reach
    return sequence[np.argsort(places, kind="stable")]


DOMAIN_ORDERS: dict[str, Callable[[Sequence[int], np.random.RandomState], np.ndarray]] = {
    "in_turn": in_turn,
    "gradual": gradual,
    "mixed": mixed,
    "recurring": recurring,
}
