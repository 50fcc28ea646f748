"""Find convolutions in a network, and the layers behind them that `FusedConv` can take in. It uses torch.fx."""

import operator
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import fx, nn

from itta.nn.batch_norm import BatchNorm
from itta.nn.fused_conv import FusedConv

RELUS: dict[Any, str] = {F.relu: "relu", torch.relu: "relu", nn.ReLU: "relu", F.relu6: "relu6", nn.ReLU6: "relu6"}
SUMS = {operator.add, operator.iadd, torch.add}
# Operations and layers that treat every image by itself
ALONE = {*RELUS, *SUMS, FusedConv, F.max_pool2d, nn.GroupNorm, nn.MaxPool2d, nn.AvgPool2d, nn.Identity}


class Tracer(fx.Tracer):
    """Trace into all modules but torch's own and convolutions, some of which look at sizes."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.Conv2d) or super().is_leaf_module(m, module_qualified_name)


def fuse_convolutions(block: nn.Module) -> fx.GraphModule | None:
    """Return a block that computes the same with fused convolutions; None if its operations cannot be told beforehand.

    The block must be in evaluation mode. Its other layers are shared with the result.
    """
    try:
        traced = fx.GraphModule(block, Tracer().trace(block))
    except Exception:  # a user's own network may do anything, and fail in any way without values
        return None
    for node in list(traced.graph.nodes):
        if node.op == "call_module" and FusedConv.can_fuse(traced.get_submodule(node.target)):
            fuse(traced, node)
    for node in traced.graph.nodes:
        conv = module_of(traced, node)
        if isinstance(conv, FusedConv) and len(node.args) == 2:
            conv.overwrites = is_spent(traced, node.args[1], node)
    traced.recompile()
    traced.delete_all_unused_submodules()
    return traced.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def treats_images_alone(traced: fx.GraphModule) -> bool:
    """Tell whether the answer for an image cannot depend on the rest of its batch, as far as the operations tell."""
    return all(node.op in ("placeholder", "output") or kind_of(traced, node) in ALONE for node in traced.graph.nodes)


def fuse(traced: fx.GraphModule, conv: fx.Node) -> None:
    """Replace a convolution, and the normalisation, sum and activation behind it, by one module."""
    chain, addend = [conv], None
    norm = module_of(traced, follower(conv))
    if is_stored(norm):
        chain.append(follower(conv))
    made = FusedConv(traced.get_submodule(str(conv.target)), norm if is_stored(norm) else None)  # type: ignore[arg-type]
    total = follower(chain[-1])
    if kind_of(traced, total) in SUMS:
        addend = other_summand(total, chain[-1])
    if addend is not None:
        chain.append(total)
    last = follower(chain[-1])
    if kind_of(traced, last) in RELUS:
        made.activation = RELUS[kind_of(traced, last)]
        chain.append(last)
    name = f"fused_{conv.name}"
    traced.add_submodule(name, made)
    with traced.graph.inserting_after(chain[-1]):
        new = traced.graph.call_module(name, (conv.args[0],) if addend is None else (conv.args[0], addend))
    chain[-1].replace_all_uses_with(new)
    for node in reversed(chain):
        traced.graph.erase_node(node)


def follower(node: fx.Node | None) -> fx.Node | None:
    """Return the only operation that reads the node's result; None if there are several."""
    return next(iter(node.users)) if node is not None and len(node.users) == 1 else None


def module_of(traced: fx.GraphModule, node: fx.Node | None) -> nn.Module | None:
    return traced.get_submodule(str(node.target)) if node is not None and node.op == "call_module" else None


def kind_of(traced: fx.GraphModule, node: fx.Node | None) -> Any:
    """Return the function that a node calls, or the class of its module."""
    if node is None or node.op not in ("call_module", "call_function"):
        return None
    return type(module_of(traced, node)) if node.op == "call_module" else node.target


def is_stored(norm: nn.Module | None) -> TypeGuard[BatchNorm]:
    """Tell whether the module normalises by stored statistics, and does no more."""
    return type(norm) is nn.BatchNorm2d and not norm.training and norm.running_mean is not None


def other_summand(total: fx.Node | None, summand: fx.Node) -> fx.Node | None:
    """Return the other of the two tensors of a sum."""
    assert total is not None
    others = [arg for arg in total.args if arg is not summand]
    found = others[0] if len(total.args) == 2 and len(others) == 1 and not total.kwargs else None
    return found if isinstance(found, fx.Node) else None


def is_spent(traced: fx.GraphModule, addend: fx.Node, conv: fx.Node) -> bool:
    """Tell whether nobody reads the addend after the convolution, so that the sum may take its memory."""
    order = {node: i for i, node in enumerate(traced.graph.nodes)}
    own = isinstance(module_of(traced, addend), FusedConv)  # its result is a tensor of its own, not a view
    readers = [node for node in addend.users if node is not conv]
    private = all(isinstance(module_of(traced, node), FusedConv) and order[node] < order[conv] for node in readers)
    return own and private and conv.args[0] is not addend
