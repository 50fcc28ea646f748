"""Jacobian-vector products of a pass that has already run, without running it again.

``torch.func.jvp`` computes a function and its derivative together, so a caller who already has the function's value
pays for it twice. `Tape` records the inputs and outputs of each operation of the ordinary pass (tensors that autograd
keeps anyway). Afterwards it pushes a tangent through: one linear operation per operation, no second pass.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

Tangents = Sequence[Tensor | None]  # one per tensor argument; None stands for zero
Rule = Callable[[Tangents], Any]


@dataclass(frozen=True)
class Operation:
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    rule: Rule


class Tape(TorchFunctionMode):
    """Record the differentiable operations inside ``with tape:``, and compute Jacobian-vector products of them.

    >>> w, x = torch.tensor([2.0, 3.0], requires_grad=True), torch.tensor([5.0, 7.0])
    >>> with Tape() as tape:
    ...     y = (w * x).relu()
    >>> tape.jvp({w: torch.tensor([1.0, -1.0])}, y)
    tensor([ 5., -7.])
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        # Weak: the tape keeps no tensor alive. The number of a freed tensor is never used again.
        self.numbers = WeakTensorKeyDictionary()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.dropout and kwargs.get("training", True) and kwargs.get("p", 0.5) > 0:
            raise RuntimeError("a tape cannot replay F.dropout: draw the mask first and multiply by it")
        first = args[0] if args and isinstance(args[0], Tensor) else None
        version = None if first is None else first._version
        out = func(*args, **kwargs)
        if first is not None and out is first and out._version == version:
            return out  # the call did nothing: dropout that is off, or a conversion to the same type
        if func is Tensor.__setitem__ and args[0].requires_grad:
            raise RuntimeError("a tape cannot replay an assignment into a tensor: use torch.where or torch.cat")
        outputs = [t for t in flat(out) if t.is_floating_point()]
        if outputs and any(t.requires_grad for t in outputs):
            inputs = flat((args, kwargs))
            read = tuple(self.number_of(t) for t in inputs)
            written = tuple(self.number_of(t) for t in outputs)
            self.operations.append(Operation(read, written, rule_for(func, args, kwargs, inputs, out)))
        return out

    def number_of(self, tensor: Tensor) -> int:
        if tensor not in self.numbers:
            self.numbers[tensor] = self.count
            self.count += 1
        return self.numbers[tensor]

    @torch.no_grad()
    def jvp(self, tangents: Mapping[Tensor, Tensor], output: Tensor) -> Tensor:
        """Return the derivative of ``output`` along ``tangents``: J·v, with J at the recorded point."""
        known = {self.number_of(t): v for t, v in tangents.items()}
        last_use = {n: i for i, op in enumerate(self.operations) for n in op.inputs}
        wanted = self.number_of(output)
        for i, op in enumerate(self.operations):
            given = [known.get(n) for n in op.inputs]
            if all(t is None for t in given):
                continue
            results = op.rule(given)
            known.update(zip(op.outputs, flat(results)))
            for n in op.inputs:  # free the tangents that no later operation reads
                if last_use[n] == i and n != wanted and n not in op.outputs:
                    known.pop(n, None)
        return known[wanted] if wanted in known else torch.zeros_like(output)


def flat(nested: Any) -> list[Tensor]:
    """Return the tensors inside nested tuples, lists and dicts, in order."""
    if isinstance(nested, Tensor):
        return [nested]
    if isinstance(nested, dict):
        nested = nested.values()
    elif not isinstance(nested, (tuple, list)):
        return []
    return [t for item in nested for t in flat(item)]


def put_back(nested: Any, tensors: list[Tensor]) -> Any:
    """Rebuild ``nested`` with its tensors replaced by those of the list, in order. The list is emptied."""
    if isinstance(nested, Tensor):
        return tensors.pop(0)
    if isinstance(nested, dict):
        return {k: put_back(v, tensors) for k, v in nested.items()}
    if isinstance(nested, (tuple, list)):
        return type(nested)([put_back(v, tensors) for v in nested])
    return nested


def rule_for(func: Any, args: Any, kwargs: Any, inputs: list[Tensor], out: Any) -> Rule:
    """Return the rule that pushes a tangent through one call. It keeps only the tensors that it needs."""
    if func in SUMS and len(inputs) == 2 and not kwargs and inputs[0].shape == inputs[1].shape:
        return lambda given: add_up(given[0], given[1], SUMS[func])
    if func in SUMS and len(inputs) == 1:
        return lambda given: given[0]
    if func in PRODUCTS and len(inputs) == 2:
        return lambda given: bilinear(torch.mul, inputs[0], inputs[1], given)
    if func in MATRIX_PRODUCTS:
        return lambda given: bilinear(torch.matmul, inputs[0], inputs[1], given)
    if func is F.conv2d:
        return Convolution(*args, **kwargs).rule
    if func is F.linear:
        return linear_rule(*args, **kwargs)
    if func is F.batch_norm:
        return batch_norm_rule(BatchNorm(*args, **kwargs))
    if func is F.relu:
        return lambda given: torch.ops.aten.threshold_backward(given[0], out, 0)  # in one pass: given·(out > 0)
    if func is F.relu6:
        return lambda given: torch.ops.aten.hardtanh_backward(given[0], out, 0, 6)
    if (
        func is F.max_pool2d and (at := getattr(out.grad_fn, "_saved_result1", None)) is not None
    ):  # pixels of the maxima
        return lambda given: given[0].flatten(-2).gather(-1, at.flatten(-2)).view(at.shape)  # type: ignore[union-attr]
    if func in LINEAR and not kwargs.get("value"):  # F.pad with a value is affine
        dims = [(t.shape, t.dtype, t.device) for t in inputs]
        template = put_back((args, kwargs), [torch.empty(0)] * len(inputs))
        return lambda given: apply(func, template, [zeros(*d) if t is None else t for d, t in zip(dims, given)])
    if out is inputs[0]:
        raise RuntimeError(f"a tape cannot replay the in-place operation {func}: use its out-of-place form")
    return general_rule(func, args, kwargs, inputs)


SUMS = {
    torch.add: 1, Tensor.add: 1, Tensor.__add__: 1, Tensor.__radd__: 1, Tensor.__iadd__: 1, Tensor.add_: 1,
    torch.sub: -1, Tensor.sub: -1, Tensor.__sub__: -1, Tensor.__isub__: -1, Tensor.sub_: -1,
}  # fmt: skip
PRODUCTS = {torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__}
MATRIX_PRODUCTS = {torch.matmul, Tensor.matmul, Tensor.__matmul__}
LINEAR = {
    torch.cat, torch.stack, torch.chunk, Tensor.chunk, torch.mean, Tensor.mean, torch.sum, Tensor.sum, torch.flatten,
    Tensor.flatten, Tensor.reshape, Tensor.view, Tensor.permute, Tensor.transpose, Tensor.unbind, Tensor.__getitem__,
    Tensor.contiguous, Tensor.squeeze, Tensor.unsqueeze, Tensor.expand, Tensor.to, Tensor.neg, F.pad, F.unfold,
    F.avg_pool2d, F.adaptive_avg_pool2d,
}  # fmt: skip


def zeros(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


def apply(func: Any, template: Any, tensors: list[Tensor]) -> Any:
    args, kwargs = put_back(template, list(tensors))
    return func(*args, **kwargs)


def add_up(a: Tensor | None, b: Tensor | None, sign: int) -> Tensor | None:
    if b is None:
        return a
    if a is None:
        return sign * b
    return torch.add(a, b, alpha=sign)


def bilinear(product: Callable[[Tensor, Tensor], Tensor], x: Tensor, w: Tensor, given: Tangents) -> Tensor:
    """Return d(x·w) = dx·w + x·dw, without the terms that are zero. Both have the precision of the tangents."""
    terms = []
    if given[0] is not None:
        terms.append(product(given[0], w.to(given[0].dtype)))
    if given[1] is not None:
        terms.append(product(x.to(given[1].dtype), given[1]))
    return terms[0].add_(terms[1]) if len(terms) == 2 else terms[0]


@dataclass(frozen=True)
class Convolution:
    """The arguments of one call of F.conv2d, in its order."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None = None
    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: int = 1

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.conv2d(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)

    def rule(self, given: Tangents) -> Tensor:
        d_bias = given[2] if self.bias is not None else None
        if given[0] is None and given[1] is None:
            assert d_bias is not None
            return self.convolve(torch.zeros_like(self.x), self.weight, d_bias)
        out = bilinear(self.convolve, self.x, self.weight, given[:2])
        return out if d_bias is None else out.add_(d_bias.view(-1, 1, 1))


def linear_rule(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Rule:
    def rule(given: Tangents) -> Tensor:
        d_bias = given[2] if bias is not None else None
        if given[0] is None and given[1] is None:
            assert d_bias is not None
            return d_bias.expand(*x.shape[:-1], -1)
        out = bilinear(F.linear, x, weight, given[:2])
        return out if d_bias is None else out.add_(d_bias)

    return rule


@dataclass(frozen=True)
class BatchNorm:
    """The arguments of one call of F.batch_norm, in its order."""

    x: Tensor
    mean: Tensor | None
    var: Tensor | None
    weight: Tensor | None = None
    bias: Tensor | None = None
    training: bool = False
    momentum: float = 0.1
    eps: float = 1e-5

    def of_affine(self, tensors: Sequence[Any]) -> tuple[Any, Any]:
        """Assign tensors to weight and bias; None for one that the layer does not have."""
        parts = list(tensors)
        weight = parts.pop(0) if self.weight is not None else None
        return weight, parts.pop(0) if self.bias is not None else None


def batch_norm_rule(norm: BatchNorm) -> Rule:
    """Return the rule of batch normalisation, which does not change the buffers."""
    first = 1 + sum(t is not None for t in (norm.mean, norm.var))  # tangents of the affine part start here
    if norm.training or norm.mean is None or norm.var is None:
        batch_rule = batch_statistics_rule(norm)
        return lambda given: batch_rule([given[0], *given[first:]])
    return stored_statistics_rule(norm, norm.mean, norm.var, first)


def batch_statistics_rule(norm: BatchNorm) -> Rule:
    """With batch statistics the general rule applies."""
    norm = replace(norm, x=norm.x.detach())  # the rule must not keep the autograd graph alive

    def normalise(x: Tensor, *affine: Tensor) -> Tensor:
        weight, bias = norm.of_affine(affine)
        return F.batch_norm(x, None, None, weight, bias, True, 0.0, norm.eps)

    inputs = [norm.x, *(t for t in (norm.weight, norm.bias) if t is not None)]
    return general_rule(normalise, tuple(inputs), {}, inputs)


def stored_statistics_rule(norm: BatchNorm, mean: Tensor, var: Tensor, first: int) -> Rule:
    """With stored statistics batch normalisation is affine in x."""

    def rule(given: Tangents) -> Tensor:
        d_weight, d_bias = norm.of_affine(given[first:])
        scale = torch.rsqrt(var + norm.eps)
        if norm.weight is not None:
            scale = scale * norm.weight
        scale = scale.view(1, -1, *[1] * (norm.x.ndim - 2))
        if d_weight is None and d_bias is None:
            assert given[0] is not None
            return given[0] * scale
        d_weight = torch.zeros_like(mean) if d_weight is None else d_weight
        out = F.batch_norm(norm.x.to(mean.dtype), mean, var, d_weight, d_bias, False, 0.0, norm.eps)
        return out if given[0] is None else out.addcmul_(given[0], scale)

    return rule


def general_rule(func: Any, args: Any, kwargs: Any, inputs: list[Tensor]) -> Rule:
    """Return the rule of any other operation: forward-mode differentiation of that one call."""
    template = put_back((args, kwargs), [torch.empty(0)] * len(inputs))
    saved = [t.detach() for t in inputs]

    def rule(given: Tangents) -> Any:
        moving = [i for i, t in enumerate(given) if t is not None]
        dtype = next(t.dtype for t in given if t is not None)  # inputs of a pass in bfloat16 are widened
        wide = [t.to(dtype) if t.is_floating_point() else t for t in saved]

        def call(*values: Tensor) -> Any:
            tensors = list(wide)
            for i, value in zip(moving, values):
                tensors[i] = value
            return apply(func, template, tensors)

        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # only this backend has forward mode
            return torch.func.jvp(call, tuple(wide[i] for i in moving), tuple(given[i] for i in moving))[1]

    return rule
