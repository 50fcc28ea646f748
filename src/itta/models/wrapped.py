"""Any network that maps images to logits as a model that adapters accept.

The network is copied. Its forward pass stays its own; a callback goes around each block, and the head is taken out of
it. So features are the input of the head, and a pass can stop after a block and go on from there.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from itta.errors import InputError, first_line, unknown
from itta.models.families import find_blocks, find_classes, find_head, find_size, logits_of
from itta.models.trained import Trained
from itta.nn.foreign import ForeignBackbone, Tap, replace_submodule

TOLERANCE = 1e-4  # for the rounding of a pass that stops and goes on


@dataclass(frozen=True)
class Wiring:
    """The names of a network's parts, and facts about its images."""

    blocks: tuple[str, ...] = ()  # paths of submodules; none: those of a known family
    head: str = ""  # path of the last layer; "": the linear layer that gives the logits
    mean: tuple[float, ...] | None = None  # of the colours; None: the network normalises images itself
    std: tuple[float, ...] | None = None
    classes: tuple[str, ...] = ()  # their names; none: those that the network knows, or numbers
    image_size: int = 0  # pixels on each side; 0: as the network says, or 224


class WrappedBackbone(ForeignBackbone):
    """A network without its head, from images in [0, 1] to the input of the head."""

    def __init__(self, net: nn.Module, wiring: Wiring) -> None:
        super().__init__(wiring.mean or (0.0, 0.0, 0.0), wiring.std or (1.0, 1.0, 1.0))
        self.adopt(net, wiring.blocks, wiring.image_size)

    def run(self, x: Tensor) -> Tensor:
        return logits_of(self.model(x))


class Wrapped(Trained):
    """A network of the user's own, wired as `wiring` says. Without a linear head the features are the logits."""

    name = "wrapped"

    def __init__(self, backbone: WrappedBackbone, head: nn.Module, wiring: Wiring, kind: str) -> None:
        super().__init__(wiring.classes, wiring.image_size)
        self.backbone, self.head, self.wiring, self.kind = backbone, head, wiring, kind

    @property
    def origin(self) -> str:
        return f"a wrapped {self.kind}"

    def describe(self) -> dict[str, Any]:
        """Return the names of the parts as plain values."""
        return {"blocks": list(self.wiring.blocks), "head": self.wiring.head}


@torch.inference_mode(False)  # tensors that are made in inference mode can never learn
@torch.enable_grad()
def wrap(net: nn.Module, **settings: Any) -> Wrapped:
    """Make a model of any network that maps images [B, 3, H, W] to logits. The network itself never changes.

    The settings are the fields of `Wiring`: ``blocks`` and ``head`` name submodules, and are found for known families;
    ``mean`` and ``std`` normalise images in [0, 1], unless the network does it itself; ``classes`` are the names of the
    classes; ``image_size`` is the number of pixels on each side.
    """
    for name in settings.keys() - Wiring.__dataclass_fields__.keys():
        raise unknown("setting of itta.wrap", name, list(Wiring.__dataclass_fields__))
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, (list, tuple)) else v for k, v in settings.items()}
    given = Wiring(**values)
    net = getattr(net, "_orig_mod", net)  # of torch.compile: only the network itself has layers to adapt
    check_colours(given)
    check_network(net)
    own = copy.deepcopy(net).eval().requires_grad_()
    size = given.image_size or find_size(net)
    x, logits = probe(own, replace(given, image_size=size))
    n = logits.shape[1]
    classes = given.classes or find_classes(net, n)
    if len(classes) != n:
        raise InputError(f"the network gives {n} logits, and {len(classes)} classes were named: name {n}.")
    check_paths(own, (*given.blocks, given.head) if given.head else given.blocks)
    head_path = given.head or find_head(own, x)
    blocks = given.blocks or find_blocks(own, x)
    blocks = tuple(path for path in blocks if path != head_path)
    head: nn.Module = own.get_submodule(head_path) if head_path else nn.Identity()
    if head_path:
        replace_submodule(own, head_path, nn.Identity())
    wiring = replace(given, blocks=blocks, head=head_path, classes=classes, image_size=size)
    model = Wrapped(WrappedBackbone(own, wiring), head, wiring, type(net).__name__).eval()
    check_head(model, x, logits)
    settle_blocks(model, x, named=bool(given.blocks))
    return model


def check_network(net: object) -> None:
    """Refuse what cannot be copied and adapted, before it is run."""
    if not isinstance(net, nn.Module):
        kind = f"the class {net.__name__}: call it first" if isinstance(net, type) else type(net).__name__
        raise InputError(f"expected a network, a torch.nn.Module, got {kind}.")
    name, like = type(net).__name__, next(net.parameters(), None)
    if isinstance(net, torch.jit.ScriptModule):
        raise InputError(f"{name} is compiled by TorchScript, and cannot learn: wrap the module it was made from.")
    if any(is_lazy(p) for p in net.parameters()):
        raise InputError(f"{name} has lazy layers, whose weights have no shape yet: run it once on images first.")
    if like is None:
        raise InputError(f"expected a network with weights, and {name} has none.")
    if like.dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"{name} has weights in {like.dtype}, which small steps would not change: convert it with .float() first. "
            "For speed, call the adapter under torch.autocast."
        )


def check_colours(wiring: Wiring) -> None:
    if (wiring.mean is None) != (wiring.std is None):
        raise InputError("mean and std go together: give both, or none if the network normalises images itself.")
    for name, values in (("mean", wiring.mean), ("std", wiring.std)):
        if values is not None and len(values) != 3:
            raise InputError(f"{name} must have a value for red, green and blue, got {len(values)} values.")


def check_paths(net: nn.Module, paths: Sequence[str]) -> None:
    names = [name for name, _ in net.named_modules() if name]
    for path in paths:
        if path not in names:
            raise unknown("submodule", path, names)
        inside = [other for other in paths if other.startswith(f"{path}.")]
        if inside:
            raise InputError(f"{inside[0]} lies inside {path}: name one of them.")


@torch.no_grad()
def probe(net: nn.Module, wiring: Wiring) -> tuple[Tensor, Tensor]:
    """Run the network on two random images; return them as it gets them, and its logits."""
    size = wiring.image_size
    x = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0)).to(next(net.parameters()))
    try:
        logits = logits_of(net(x))
    except InputError:
        raise
    except Exception as error:  # a network may refuse in any way
        raise InputError(
            f"{type(net).__name__} cannot run on images of {size}×{size} pixels ({first_line(error)}): give their size "
            "as image_size, and a network that takes images [B, 3, H, W]."
        ) from error
    if logits.ndim != 2 or len(logits) != 2:
        raise InputError(
            f"expected a network that gives logits [B, classes], got shape {tuple(logits.shape)} for 2 images."
        )
    if logits.shape[1] < 2:
        raise InputError(
            "expected logits of at least 2 classes, got 1. If it is the logit of the second of two classes, let the "
            "network return torch.cat([torch.zeros_like(logit), logit], 1)."
        )
    if not torch.isfinite(logits).all():
        raise InputError(f"{type(net).__name__} gives logits that are not finite for random images in [0, 1].")
    if not alike(logits_of(net(x)), logits):
        raise InputError(f"{type(net).__name__} gives other logits when it sees the same images again: fix its seed.")
    if (logits >= 0).all() and alike(logits.sum(1), torch.ones_like(logits[:, 0])):
        raise InputError("expected a network that gives logits, and it gives probabilities: leave its softmax out.")
    return x, logits


@torch.no_grad()
def check_head(model: Wrapped, x: Tensor, logits: Tensor) -> None:
    """Refuse a head that does not turn its input into the logits; note the size of the features."""
    assert isinstance(model.backbone, WrappedBackbone)
    try:
        z = model.backbone.run(x)
        again = model.classify(z) if z.ndim == 2 else None
    except Exception:  # a layer behind it may not take its input
        z, again = x, None
    model.backbone.dim = z.shape[1]
    if again is None or again.shape != logits.shape or not alike(again, logits):
        raise InputError(
            f"{model.wiring.head} is not the last layer of {model.kind}: its output is not the logits. Name the layer "
            "that gives the logits, or none to look for it."
        )


def settle_blocks(model: Wrapped, x: Tensor, named: bool) -> None:
    """Put the blocks into the order of the pass. Refuse those that cannot serve if they were named; else drop them."""
    backbone = model.backbone
    assert isinstance(backbone, WrappedBackbone)
    faults = find_faults(backbone, x)
    if faults and named:
        block, fault = next(iter(faults.items()))
        path = backbone.paths[backbone.block_names.index(block)]
        raise InputError(f"{path} cannot be a block of {model.kind}: {fault}. Name other submodules.")
    backbone.untap(list(faults))
    model.wiring = replace(model.wiring, blocks=backbone.paths)
    if len(backbone.block_names) > 1:
        backbone.late = backbone.parameters_after(backbone.block_names[-2])
    else:
        backbone.late = tuple(name for name, _ in backbone.named_parameters())


@torch.no_grad()
def find_faults(backbone: WrappedBackbone, x: Tensor) -> dict[str, str]:
    """Map each block that cannot serve to the reason."""
    seen: list[str] = []
    faults: dict[str, str] = {}

    def note(tap: Tap, run: Any) -> Tensor:
        z = run()
        seen.append(tap.name)
        if not isinstance(z, Tensor) or z.ndim not in (3, 4) or len(z) != len(x):
            faults[tap.name] = "its output is not maps [B, C, H, W] or tokens [B, N, C]"
        else:
            backbone.shapes[tap.name] = tuple(z.shape[1:])
        return z

    features = backbone.walk(x, note)
    for block in backbone.block_names:
        if seen.count(block) != 1:
            faults[block] = f"the forward pass calls it {seen.count(block)} times, and once is needed"
    order = [b for b in seen if b not in faults]
    rank = {b: order.index(b) if b in order else len(order) for b in backbone.block_names}
    pairs = sorted(zip(backbone.block_names, backbone.paths), key=lambda pair: rank[pair[0]])
    backbone.block_names, backbone.paths = (tuple(part) for part in zip(*pairs)) if pairs else ((), ())  # type: ignore[misc]
    for block in order:
        try:
            goes_on = alike(backbone.resume(block, backbone.until(block, x)), features)
        except Exception:  # shapes that do not fit, as of a skip connection around the block
            goes_on = False
        if not goes_on:
            faults[block] = "a connection goes past it, so the pass cannot go on from its output"
    return faults


def alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE)
