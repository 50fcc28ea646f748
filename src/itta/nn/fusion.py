"""Find convolutions in a network, and the layers behind them that `FusedConv` can take in. It uses torch.fx.

The result keeps nothing of torch.fx, whose graphs refer to themselves: they would keep the weights of a model that
nobody uses any more in memory, until Python's collector comes round.
"""

import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate

from itta.nn.batch_norm import BatchNorm
from itta.nn.fused_conv import FusedConv, has_kernel

RELUS: dict[Any, str] = {F.relu: "relu", torch.relu: "relu", nn.ReLU: "relu", F.relu6: "relu6", nn.ReLU6: "relu6"}
SUMS = {operator.add, operator.iadd, torch.add}
# Operations and layers that treat every image by itself
ALONE = {*RELUS, *SUMS, FusedConv, F.max_pool2d, nn.GroupNorm, nn.MaxPool2d, nn.AvgPool2d, nn.Identity}


class Tracer(fx.Tracer):
    """Trace into all modules but torch's own and convolutions, some of which look at sizes."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.Conv2d) or super().is_leaf_module(m, module_qualified_name)


@dataclass(frozen=True)
class Result:
    """Stands for the result of an earlier step."""

    name: str


class Step(NamedTuple):
    name: str
    run: Callable[..., Any]
    kernel: Callable[..., Any]  # the same without its checks, where it has a form without
    args: Any
    kwargs: Any
    reads: tuple[str, ...] | None  # names of the results that are all of its arguments; None: it has others too
    spent: tuple[str, ...]  # results that no later step reads


def stand_in(arg: Any) -> Any:
    return Result(arg.name) if isinstance(arg, fx.Node) else arg


class Steps(nn.Module):
    """The operations of a block, one after another.

    ``alone`` says that each of them treats every image by itself. None of these changes the precision or the device, so
    one look at the block's input is enough, and not one at the input of every convolution.
    """

    def __init__(self, graph: fx.Graph, modules: dict[str, nn.Module], alone: bool) -> None:
        super().__init__()
        self.alone, self.modules_called = alone, nn.ModuleList()
        self.steps: list[Step] = []
        order = list(graph.nodes)
        last_use = {read: node for node in order for read in node.all_input_nodes}
        for node in order:
            args, kwargs = (map_aggregate(part, stand_in) for part in (node.args, node.kwargs))
            spent = tuple(read.name for read, by in last_use.items() if by is node)
            if node.op == "placeholder":
                self.start = node.name
            elif node.op == "output":
                self.end = args[0]
            else:
                run = self.callee(node, modules)
                kernel = run.kernel if isinstance(run, FusedConv) else run
                only_results = not kwargs and all(isinstance(arg, Result) for arg in args)
                reads = tuple(arg.name for arg in args) if only_results else None
                self.steps.append(Step(node.name, run, kernel, args, kwargs, reads, spent))

    def callee(self, node: fx.Node, modules: dict[str, nn.Module]) -> Callable[..., Any]:
        if node.op == "call_method":
            return partial(call_method, str(node.target))
        if node.op == "call_function":
            return node.target  # type: ignore[return-value]
        self.modules_called.append(modules[str(node.target)])
        return self.modules_called[-1]

    def forward(self, x: Tensor) -> Tensor:
        known = {self.start: x}
        quick = self.alone and has_kernel(x)
        del x  # or its memory would be kept to the end

        def put_in(part: Any) -> Any:
            return map_aggregate(part, lambda arg: known[arg.name] if isinstance(arg, Result) else arg)

        for step in self.steps:
            run = step.kernel if quick else step.run
            kwargs = put_in(step.kwargs) if step.kwargs else {}
            args = put_in(step.args) if step.reads is None else [known[name] for name in step.reads]
            for name in step.spent:
                del known[name]
            known[step.name] = run(*args, **kwargs)
            del args, kwargs
        return put_in(self.end)


def call_method(name: str, owner: Any, *args: Any, **kwargs: Any) -> Any:
    return getattr(owner, name)(*args, **kwargs)


@dataclass(frozen=True)
class Traced:
    """The operations of a block, and its modules by name."""

    graph: fx.Graph
    modules: dict[str, nn.Module]


def fuse_convolutions(block: nn.Module) -> tuple[nn.Module, bool] | None:
    """Return a copy with fused convolutions, and whether it treats every image by itself.

    Return None if its operations depend on values or sizes, or if it reads tensors other than its modules'. The block
    must be in evaluation mode.
    """
    try:
        graph = Tracer().trace(without_values(block))
    except Exception:  # a user's own network may do anything, and fail in any way without values
        return None
    if any(node.op == "get_attr" for node in graph.nodes) or sum(n.op == "placeholder" for n in graph.nodes) != 1:
        return None
    called = [str(node.target) for node in graph.nodes if node.op == "call_module"]
    traced = Traced(graph, {name: block.get_submodule(name) for name in called})
    for node in list(graph.nodes):
        if FusedConv.can_fuse(module_of(traced, node)):
            fuse(traced, node)
    for node in graph.nodes:
        conv = module_of(traced, node)
        if isinstance(conv, FusedConv) and len(node.args) == 2:
            conv.overwrites = is_spent(traced, node.args[1], node)
    alone = all(node.op in ("placeholder", "output") or kind_of(traced, node) in ALONE for node in graph.nodes)
    steps = copy.deepcopy(Steps(graph, traced.modules, alone))
    return steps.to(memory_format=torch.channels_last), alone  # type: ignore[call-overload]


def without_values(block: nn.Module) -> nn.Module:
    """Return a copy without memory for its tensors: the tracer changes it, and refers to it until Python collects."""
    parameters = {id(p): nn.Parameter(p.to("meta"), p.requires_grad) for p in block.parameters()}
    return copy.deepcopy(block, {**parameters, **{id(t): t.to("meta") for t in block.buffers()}})


def fuse(traced: Traced, conv: fx.Node) -> None:
    """Replace a convolution, and the normalisation, sum and activation behind it, by one module."""
    chain, addend = [conv], None
    after = follower(conv)
    norm = module_of(traced, after)
    if after is not None and is_stored(norm):
        chain, after = [*chain, after], follower(after)
    made = FusedConv(traced.modules[str(conv.target)], norm if is_stored(norm) else None)  # type: ignore[arg-type]
    if after is not None and kind_of(traced, after) in SUMS:
        addend = other_summand(after, chain[-1])
    if after is not None and addend is not None:
        chain, after = [*chain, after], follower(after)
    if after is not None and kind_of(traced, after) in RELUS:
        made.activation = RELUS[kind_of(traced, after)]
        chain.append(after)
    name = f"fused {conv.name}"
    traced.modules[name] = made
    with traced.graph.inserting_after(chain[-1]):
        args = (conv.args[0],) if addend is None else (conv.args[0], addend)
        new = traced.graph.create_node("call_module", name, args)
    chain[-1].replace_all_uses_with(new)
    for node in reversed(chain):
        traced.graph.erase_node(node)


def follower(node: fx.Node | None) -> fx.Node | None:
    """Return the only operation that reads the node's result; None if there are several."""
    return next(iter(node.users)) if node is not None and len(node.users) == 1 else None


def module_of(traced: Traced, node: fx.Node | None) -> nn.Module | None:
    return traced.modules[str(node.target)] if node is not None and node.op == "call_module" else None


def kind_of(traced: Traced, node: fx.Node | None) -> Any:
    """Return the function that a node calls, or the class of its module."""
    if node is None or node.op not in ("call_module", "call_function"):
        return None
    return type(module_of(traced, node)) if node.op == "call_module" else node.target


def is_stored(norm: nn.Module | None) -> TypeGuard[BatchNorm]:
    """Tell whether the module normalises by stored statistics, and does no more."""
    return type(norm) is nn.BatchNorm2d and not norm.training and norm.running_mean is not None


def other_summand(total: fx.Node, summand: fx.Node) -> fx.Node | None:
    """Return the other of the two tensors of a sum."""
    others = [arg for arg in total.args if arg is not summand]
    found = others[0] if len(total.args) == 2 and len(others) == 1 and not total.kwargs else None
    return found if isinstance(found, fx.Node) else None


def is_spent(traced: Traced, addend: fx.Node, conv: fx.Node) -> bool:
    """Tell whether nobody reads the addend after the convolution, so that the sum may take its memory."""
    order = {node: i for i, node in enumerate(traced.graph.nodes)}
    own = isinstance(module_of(traced, addend), FusedConv)  # its result is a tensor of its own, not a view
    readers = [node for node in addend.users if node is not conv]
    private = all(isinstance(module_of(traced, node), FusedConv) and order[node] < order[conv] for node in readers)
    return own and private and conv.args[0] is not addend
