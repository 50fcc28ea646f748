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
    """Copy tensors of any shapes to the host in one transfer, without gradients.

    >>> fetch(torch.tensor([1.5, 2.5]), torch.tensor(True))
    [tensor([1.5000, 2.5000]), tensor(True)]
    """
    values = [t.detach() for t in tensors]
    if all(t.device.type == "cpu" for t in values):
        return values
    joined = torch.cat([widen(t).flatten() for t in values]).cpu()
    parts = joined.split([t.numel() for t in values])
    return [part.view(t.shape).to(t.dtype) for part, t in zip(parts, values)]


def fetch_numbers(values: Mapping[str, Tensor | float]) -> dict[str, float]:
    """Turn tensors with one value each into numbers, in one transfer. Numbers stay as they are.

    >>> fetch_numbers({"loss": torch.tensor(0.5), "weight": 2.0})
    {'loss': 0.5, 'weight': 2.0}
    """
    found = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    numbers = dict(zip(found, map(float, fetch(*found.values()))))
    return {name: numbers[name] if name in numbers else float(value) for name, value in values.items()}


def send(values: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Copy a tensor from the host to a device. The host does not wait for the copy, except on Apple's GPUs.

    >>> send(torch.tensor([1.0]), torch.device("cpu"), torch.float64)
    tensor([1.], dtype=torch.float64)
    """
    values = values if dtype is None else values.to(dtype)
    return values.to(device, non_blocking=device.type != "mps")
