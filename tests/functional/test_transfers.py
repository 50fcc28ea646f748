"""Copies between host and device: one transfer for many values, and no waiting for copies to the device."""

import torch

from itta.functional.transfers import fetch, fetch_numbers, pin, send, widen
from tests.fixtures.device_walk import PRETENDED, pretended_device

CPU = torch.device("cpu")


def test_many_tensors_come_in_one_transfer() -> None:
    tensors = [
        torch.rand(2, 3),
        torch.tensor(True),
        torch.tensor([2**40, -1]),
        torch.rand(0),
        torch.tensor(0.1).double(),
    ]
    with pretended_device() as watch:
        there = [t.to(PRETENDED) for t in tensors]
        watch.forget()
        found = fetch(*there)
        assert watch.waits.total() == 1
    for mine, theirs in zip(found, tensors, strict=True):
        assert (mine.device, mine.dtype) == (CPU, theirs.dtype)
        assert torch.equal(mine, theirs)


def test_tensors_on_the_host_stay_there_and_lose_their_gradient() -> None:
    z = torch.rand(3, requires_grad=True)
    with pretended_device() as watch:
        near, far = fetch(z * 2, torch.ones(2).to(PRETENDED))
        assert watch.waits.total() == 1
    assert not near.requires_grad
    assert torch.equal(near, z.detach() * 2)
    assert torch.equal(far, torch.ones(2))


def test_numbers_are_those_of_item() -> None:
    loss = torch.tensor(0.1)  # not a round number in float32
    assert fetch_numbers({"loss": loss, "share": 0.3, "count": 2}) == {"loss": loss.item(), "share": 0.3, "count": 2.0}
    assert fetch_numbers({}) == {}


def test_the_host_does_not_wait_for_a_copy_to_the_device() -> None:
    with pretended_device() as watch:
        sent = send(torch.arange(3), PRETENDED, torch.float64)
        assert not watch.blocking_uploads
        assert not watch.waits
        torch.arange(3).to(PRETENDED)
        assert watch.blocking_uploads.total() == 1
        assert (sent.device, sent.dtype) == (PRETENDED, torch.float64)


def test_only_cuda_needs_pinned_memory() -> None:
    values = torch.rand(2)
    assert pin(values, CPU) is values
    assert widen(values).dtype == torch.float64
