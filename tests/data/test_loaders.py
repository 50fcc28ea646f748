import threading
import time

import numpy as np
import pytest
import torch

from itta.data.dataset import DomainDataset, Split, split
from itta.data.loaders import TrainLoader, batched, cuts, prefetch, stream, use_workers
from itta.errors import InputError


class Numbered:
    """Images with their index as the value of every pixel. Reads are counted."""

    groups = None

    def __init__(self, n: int) -> None:
        self.labels = np.arange(n, dtype=np.int64) % 2
        self.names = [str(i) for i in range(n)]
        self.reads = 0

    def __len__(self) -> int:
        return len(self.names)

    def read(self, indices):
        self.reads += 1
        return torch.tensor(np.asarray(indices), dtype=torch.uint8).view(-1, 1, 1, 1).repeat(1, 3, 4, 4)


def loader(
    domains: tuple[str, ...] = ("a", "b"), batch_size: int = 8, seed: int = 0, augment: bool = True
) -> TrainLoader:
    data = DomainDataset("numbers", ("even", "odd"), {"a": Numbered(40), "b": Numbered(5)}, image_size=4)
    return TrainLoader(data, split(data, 0), domains, batch_size, seed, augment)


def same(left, right) -> bool:
    return all(torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(left, right, strict=True))


def test_one_batch_per_domain_in_order() -> None:
    batches = loader(("b", "a"), augment=False).batches(3)
    numbers = [(x[:, 0, 0, 0] * 255).round().long() for x, _ in batches]
    assert [tuple(x.shape) for x, _ in batches] == [(8, 3, 4, 4)] * 2
    assert numbers[0].max() < 5 <= numbers[1].max()
    for (x, y), number in zip(batches, numbers):
        assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
        assert torch.equal(y, number % 2)


def test_a_step_is_a_pure_function_of_seed_and_step() -> None:
    first, second = loader(), loader()
    first.batches(0)
    assert same(first.batches(7), second.batches(7))
    assert not same(first.batches(7), first.batches(8))
    assert not same(first.batches(7), loader(seed=1).batches(7))


def test_a_domain_does_not_depend_on_the_others() -> None:
    assert same(loader(("a", "b")).batches(2)[1:], loader(("b",)).batches(2))


def test_only_the_train_split_is_drawn_and_all_of_it() -> None:
    data = DomainDataset("numbers", ("even", "odd"), {"a": Numbered(40)}, image_size=4)
    cut = split(data, 0)
    plain = TrainLoader(data, cut, ("a",), 16, seed=0, augment=False)
    seen = {int(v) for step in range(50) for v in (plain.batches(step)[0][0][:, 0, 0, 0] * 255).round()}
    assert seen == set(cut["a"].train.tolist())


@pytest.mark.parametrize("batch_size", [0, -1, 5000])
def test_a_batch_size_out_of_range_is_refused(batch_size: int) -> None:
    with pytest.raises(InputError, match=f"batch size {batch_size}.*1 to"):
        loader(batch_size=batch_size)
    with pytest.raises(InputError, match=f"batch size {batch_size}.*1 to"):
        stream(Numbered(3), [0, 1], batch_size)


def test_an_empty_split_no_domains_and_an_unknown_domain_are_refused() -> None:
    data = DomainDataset("numbers", ("even", "odd"), {"a": Numbered(2)}, image_size=4)
    empty = {"a": Split(np.array([], dtype=np.int64), np.arange(2))}
    with pytest.raises(InputError, match="domain 'a' has no images to train on"):
        TrainLoader(data, empty, ("a",), 2, seed=0)
    with pytest.raises(InputError, match="no domains"):
        loader(())
    with pytest.raises(InputError, match="unknown domain 'c'"):
        loader(("c",))


def prefetch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("itta-prefetch")]


def test_prefetch_yields_the_same_batches_and_every_step_once() -> None:
    direct, ahead = loader(), list(prefetch(loader(), 3, 9))
    assert [step for step, _ in ahead] == list(range(3, 10))
    assert all(same(direct.batches(step), batches) for step, batches in ahead)
    assert list(prefetch(loader(), 5, 4)) == []
    assert not prefetch_threads()


def test_prefetch_stays_two_steps_ahead() -> None:
    source = loader(("a",))
    images = source._images["a"]
    batches = prefetch(source, 0, 99)
    next(batches)
    time.sleep(0.2)
    assert images.reads == 3
    batches.close()


def test_prefetch_ends_its_thread_when_the_consumer_stops() -> None:
    batches = prefetch(loader(), 0, 10**9)
    next(batches)
    assert len(prefetch_threads()) == 1
    batches.close()
    assert not prefetch_threads()


def test_prefetch_hands_an_error_to_the_consumer() -> None:
    class Failing(TrainLoader):
        def batches(self, step):
            if step == 2:
                raise InputError("cannot read step 2")
            return super().batches(step)

    data = DomainDataset("numbers", ("even", "odd"), {"a": Numbered(10)}, image_size=4)
    batches = prefetch(Failing(data, split(data, 0), ("a",), 2, seed=0), 0, 10)
    assert [next(batches)[0], next(batches)[0]] == [0, 1]
    with pytest.raises(InputError, match="cannot read step 2"):
        next(batches)
    assert not prefetch_threads()


def test_stream_reads_each_image_once_in_a_seeded_order() -> None:
    images, indices = Numbered(20), [3, 1, 4, 15, 9, 2, 6]
    batches = list(stream(images, indices, 3, seed=0))
    order = np.concatenate([rows for rows, _, _ in batches])
    assert [len(rows) for rows, _, _ in batches] == [3, 3, 1]
    assert sorted(order) == sorted(indices)
    assert order.tolist() != indices
    again = np.concatenate([rows for rows, _, _ in stream(images, indices, 2, seed=0)])
    assert order.tolist() == again.tolist()
    for rows, x, y in batches:
        assert torch.equal((x[:, 0, 0, 0] * 255).round().long(), torch.from_numpy(rows))
        assert torch.equal(y, torch.from_numpy(images.labels[rows]))


def test_stream_keeps_the_given_order_and_is_lazy() -> None:
    images = Numbered(20)
    batches = stream(images, [5, 3, 8], 2)
    assert images.reads == 0
    assert next(batches)[0].tolist() == [5, 3]
    assert images.reads == 1


@pytest.mark.parametrize(
    ("n", "size", "least", "expected"),
    [(9, 4, 1, [4, 4, 1]), (9, 4, 2, [4, 5]), (10, 4, 2, [4, 4, 2]), (1, 4, 2, [1]), (3, 1, 2, [1, 2]), (0, 4, 2, [])],
)
def test_a_rest_too_small_for_an_adapter_goes_with_the_batch_before(n, size, least, expected) -> None:
    batches = list(stream(Numbered(n), np.arange(n), size, least=least))
    assert [len(rows) for rows, _, _ in batches] == expected
    assert [i for rows, _, _ in batches for i in rows] == list(range(n))


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_batches_do_not_depend_on_the_number_of_workers(workers: int) -> None:
    expected = [loader().batches(step) for step in range(2, 12)]
    found = list(prefetch(loader(), 2, 11, workers=workers))
    assert [step for step, _ in found] == list(range(2, 12))
    for (_, batches), others in zip(found, expected, strict=True):
        for (x, y), (other_x, other_y) in zip(batches, others, strict=True):
            assert torch.equal(x, other_x)
            assert torch.equal(y, other_y)
    assert not prefetch_threads()


def test_workers_of_the_process() -> None:
    try:
        use_workers(3)
        batches = prefetch(loader(), 0, 10**9)
        next(batches)
        assert 1 < len(prefetch_threads()) <= 3
        batches.close()  # type: ignore[attr-defined]
    finally:
        use_workers(1)
    for wrong, match in ((-1, "must be at least 0"), (1000, "must be at most 64")):
        with pytest.raises(InputError, match=match):
            use_workers(wrong)


@pytest.mark.parametrize("n", range(9))
@pytest.mark.parametrize("least", [1, 2, 4])
def test_batched_cuts_as_cuts_does(n: int, least: int) -> None:
    items = list(range(n))
    assert list(batched(iter(items), 3, least)) == [items[part] for part in cuts(n, 3, least)]
