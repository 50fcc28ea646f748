"""Copies between the host and the device that computes: as few as possible, and without waiting where that is possible.

A GPU works through a queue of operations. The host waits for the whole queue when it reads a value, so code that reads
one value at a time leaves the GPU idle. Read all values of a step with one `fetch`.
"""

from collections.abc import Mapping

import torch
from torch import Tensor


def widen(values: Tensor) -> Tensor:
    """Convert to double precision, or to single precision on Apple's GPUs, which have no doubles.

    >>> widen(torch.tensor([1, 2]))
    tensor([1., 2.], dtype=torch.float64)
    """
    return values.float() if values.device.type == "mps" else values.double()


def fetch(*tensors: Tensor) -> list[Tensor]:
    """Copy tensors of any shapes to the host in one transfer, without gradients. Those on the host stay as they are.

    >>> fetch(torch.tensor([1.5, 2.5]), torch.tensor(True))
    [tensor([1.5000, 2.5000]), tensor(True)]
    """
    values = [t.detach() for t in tensors]
    far = [t for t in values if t.device.type != "cpu"]
    if not far:
        return values
    parts = torch.cat([widen(t).flatten() for t in far]).cpu().split([t.numel() for t in far])
    fetched = iter(part.view(t.shape).to(t.dtype) for part, t in zip(parts, far))
    return [t if t.device.type == "cpu" else next(fetched) for t in values]


def fetch_numbers(values: Mapping[str, Tensor | float]) -> dict[str, float]:
    """Turn tensors with one value each into numbers, in one transfer. Numbers stay as they are.

    >>> fetch_numbers({"loss": torch.tensor(0.5), "weight": 2.0})
    {'loss': 0.5, 'weight': 2.0}
    """
    found = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    numbers = dict(zip(found, map(float, fetch(*found.values()))))
    return {name: numbers[name] if name in numbers else float(value) for name, value in values.items()}


def pin(values: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor into memory from which a CUDA device reads while the host goes on; other devices need no copy."""
    return values.pin_memory() if device.type == "cuda" else values


def send(values: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Copy a tensor from the host to a device. The host does not wait for the copy, except on Apple's GPUs.

    >>> send(torch.tensor([1.0]), torch.device("cpu"), torch.float64)
    tensor([1.], dtype=torch.float64)
    """
    values = values if dtype is None else values.to(dtype)
    return values.to(device, non_blocking=device.type != "mps")
