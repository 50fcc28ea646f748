"""Find the parts of somebody else's network: its head, its blocks, its image size, the names of its classes.

The head is found by running the network. The blocks are those of a known family: layer1 to layer4 of ResNets, the
feature info of timm, a list of equal layers as transformers have, or the stages of a sequence of layers.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from itta.errors import InputError

USUAL_SIZE = 224
MOST_PARAMETERS = 0.5  # share of a network's parameters that its list of equal layers holds
STEMS = ("act", "bn", "conv", "norm", "stem")  # parts of timm's feature info that are no blocks


def logits_of(output: Any) -> Tensor:
    """Return the logits in the output of a network: a tensor, or an object, dict or tuple that holds it."""
    if isinstance(output, Tensor):
        return output
    found = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
    if found is None and isinstance(output, (tuple, list)) and output:
        found = output[0]
    if not isinstance(found, Tensor):
        raise InputError(
            f"expected a network that gives logits, as a tensor or as the field logits, got {type(output).__name__}: "
            "put it into a module that returns the logits."
        )
    return found


def find_size(net: nn.Module) -> int:
    """Return the image size that a network of timm or transformers names, or 224."""
    timm_size = (getattr(net, "pretrained_cfg", None) or {}).get("input_size", (None,))[-1]
    size = getattr(getattr(net, "config", None), "image_size", None) or timm_size
    return size if isinstance(size, int) else USUAL_SIZE


def find_classes(net: nn.Module, n: int) -> tuple[str, ...]:
    """Return the names of the classes that a network of transformers knows, or their numbers."""
    names = getattr(getattr(net, "config", None), "id2label", None) or {}
    return tuple(str(names.get(i, i)) for i in range(n))


@torch.no_grad()
def find_head(net: nn.Module, x: Tensor) -> str:
    """Return the path of the linear layer that gives the logits, or "" if none does."""
    seen: dict[str, Tensor] = {}
    linear: dict[str, nn.Module] = {name: m for name, m in net.named_modules() if isinstance(m, nn.Linear)}
    with noting_outputs(linear, seen):
        logits = logits_of(net(x))
    return next((name for name, out in seen.items() if out.shape == logits.shape and torch.equal(out, logits)), "")


def find_blocks(net: nn.Module, x: Tensor) -> tuple[str, ...]:
    """Return the paths of the blocks of a known family, or none."""
    if all(hasattr(net, f"layer{i}") for i in range(1, 5)):
        return tuple(f"layer{i}" for i in range(1, 5))
    info: Any = getattr(net, "feature_info", None)
    if info is not None and getattr(net, "output_fmt", "NCHW") == "NCHW":
        modules = dict(net.named_modules())
        paths = [part["module"] for part in info if part["module"] in modules]
        return tuple(p for p in paths if not p.rpartition(".")[2].startswith(STEMS))
    return equal_layers(net) or stages(net, x)


def equal_layers(net: nn.Module) -> tuple[str, ...]:
    """Return the members of the list of equal layers that holds most of the network's parameters."""
    total = count(net)
    for name, module in net.named_modules():  # outer lists come first
        members = list(module.named_children()) if isinstance(module, (nn.ModuleList, nn.Sequential)) else []
        alike = len({type(m) for _, m in members}) == 1 and len(members) > 1 and any(members[0][1].children())
        if alike and count(module) > MOST_PARAMETERS * total:
            return tuple(f"{name}.{child}".lstrip(".") for child, _ in members)
    return ()


@torch.no_grad()
def stages(net: nn.Module, x: Tensor) -> tuple[str, ...]:
    """Return the last layer at each resolution, in a sequence of layers or in its ``features``."""
    features = getattr(net, "features", net)
    if not isinstance(features, nn.Sequential):
        return ()
    prefix = "" if features is net else "features."
    seen: dict[str, Tensor] = {}
    with noting_outputs({f"{prefix}{name}": m for name, m in features.named_children()}, seen):
        net(x)
    maps = [(name, out.shape[2:]) for name, out in seen.items() if out.ndim == 4 and out[0, 0].numel() > 1]
    return tuple([name for name, _ in same][-1] for _, same in groupby(maps, key=lambda m: m[1]))


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@contextmanager
def noting_outputs(modules: dict[str, nn.Module], seen: dict[str, Tensor]) -> Iterator[None]:
    """Note the tensors that these modules give, by name, in the order of the pass."""

    def noting(name: str) -> Any:
        def note(module: nn.Module, args: Sequence[Any], out: Any) -> None:
            if isinstance(out, Tensor):
                seen[name] = out

        return note

    handles = [m.register_forward_hook(noting(name)) for name, m in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
