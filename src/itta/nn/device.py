"""The device that computes, and its precision: find it, refuse one that is absent, and put a model there."""

from typing import TypeVar

import torch
from torch import nn

from itta.errors import InputError
from itta.settings import Precision

CHOICES = "auto, cpu, cuda, cuda:N, mps"
Model = TypeVar("Model", bound=nn.Module)


def resolve_device(device: str | torch.device = "auto") -> torch.device:
    """Return the device of a name; "auto" is the first CUDA device, else Apple's GPU, else the CPU.

    A device of torch's own type may be of any kind.

    >>> resolve_device("cpu")
    device(type='cpu')
    """
    if device == "auto":
        found = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device(found)
    try:
        wanted = torch.device(device)
    except RuntimeError:
        raise InputError(f"unknown device {device!r}. Choices: {CHOICES}.") from None
    if wanted.type not in ("cpu", "cuda", "mps") and isinstance(device, str):
        raise InputError(f"unknown device {str(device)!r}. Choices: {CHOICES}.")
    if wanted.type == "cuda":
        check_cuda(wanted)
    if wanted.type == "mps" and not torch.backends.mps.is_available():
        raise InputError(
            "the device mps is not available: it needs macOS on an Apple processor. Choose the device cpu."
        )
    return wanted


def check_cuda(wanted: torch.device) -> None:
    """Refuse a CUDA device that this process does not see."""
    if not torch.backends.cuda.is_built():
        raise InputError(
            f"the device {wanted} is not available: torch {torch.__version__} is built without CUDA. Install a CUDA "
            "build of torch (pytorch.org tells how), or choose the device cpu."
        )
    count = torch.cuda.device_count()
    if count == 0:
        raise InputError(
            f"the device {wanted} is not available: torch finds no GPU. Check nvidia-smi and the variable "
            "CUDA_VISIBLE_DEVICES, or choose the device cpu."
        )
    if wanted.index is not None and wanted.index >= count:
        raise InputError(f"there is no {wanted}: torch finds {count} GPUs, cuda:0 to cuda:{count - 1}.")


def describe_device(device: torch.device) -> str:
    """Name a device for a record: "cpu", "mps", or "cuda" with the model of the GPU.

    >>> describe_device(torch.device("cpu"))
    'cpu'
    """
    return f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type


def device_of(module: nn.Module) -> torch.device:
    """Return the device of a module's parameters."""
    return next(module.parameters()).device


def place(model: Model, device: str | torch.device = "auto", precision: Precision = "float32") -> Model:
    """Move a model with a backbone to a device, and set the precision in which its backbone computes."""
    found = resolve_device(device)
    if precision == "bf16" and found.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise InputError(f"{describe_device(found)} cannot compute in bf16: choose the precision float32.")
    model.backbone.precision = precision  # type: ignore[union-attr]
    return model.to(found)
