"""ITTA's learned loss f_w after training: how each of its dimensions answers, in numbers and as a figure."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from itta.algorithms import Algorithm
from itta.nn.affine_stack import AffineStack
from itta.report.plot_style import COLOURS, hide_spines, pyplot, save_figure

POINTS = 101  # at which f_w is sampled, in each dimension


@dataclass(frozen=True)
class Sampled:
    """f_w at some inputs h of each dimension, [points, dims] each."""

    h: Tensor
    now: Tensor
    start: Tensor  # the values before training: ReLU, or with one layer the identity


@torch.no_grad()
def sample_f_w(f_w: AffineStack, h: Tensor) -> Sampled:
    start = AffineStack(tuple(f_w.weight.shape[1:]), len(f_w.weight))
    return Sampled(h, f_w(h.to(f_w.weight.device)).cpu(), start(h))


def f_w_inputs(trained: Algorithm, reach: float) -> tuple[Tensor, bool]:
    """Inputs at which to sample f_w, [points, dims], and whether they span the inputs that f_w saw in training.

    The range always includes 0, where the two views do not differ. A model that does not know its range gets ±reach.
    """
    dim = trained.backbone.dim
    seen = trained.differences
    low = seen["low"].clamp(max=0) if seen else torch.full((dim,), -reach)
    high = seen["high"].clamp(min=0) if seen else torch.full((dim,), reach)
    share = torch.linspace(0, 1, POINTS)[:, None]
    return low + (high - low) * share, seen is not None


@torch.no_grad()
def describe_f_w(f_w: AffineStack, sampled: Sampled) -> dict[str, Any]:
    """How many dimensions answer in which way, and how far f_w has moved since the start of training."""
    h, now, start = sampled.h, sampled.now, sampled.start
    at_zero = f_w(torch.zeros_like(h[0], device=f_w.weight.device)).cpu()
    kinds = count_kinds((h == 0).all(0), now[0], at_zero, now[-1])
    moved = (now - start).square().mean().sqrt() / start.square().mean().sqrt()
    return {
        "dimensions": h.shape[1],
        "layers": len(f_w.weight),
        "idle": kinds["input always 0"],
        "dead": kinds["constant (dead)"],
        "kinds": kinds,
        "change_since_start": float(moved),
        "at_zero": {"mean": float(at_zero.mean()), "largest": float(at_zero.abs().max())},
        "input_width": {"median": float((h[-1] - h[0]).median()), "largest": float((h[-1] - h[0]).max())},
    }


def count_kinds(idle: Tensor, at_low: Tensor, at_zero: Tensor, at_high: Tensor) -> Mapping[str, int]:
    """Count dimensions by the side of zero on which f_w answers; the input of ``idle`` ones is always zero.

    A layer ReLU(a·h + b) is monotonic, and so is a stack of them. It is constant between two points if and only if it
    has the same value at both, so its values at the two ends and at zero decide.

    >>> low, zero, high = torch.tensor([0.0, 0, 0, 1, 1]), torch.zeros(5), torch.tensor([0.0, 0, 2, 0, -1])
    >>> list(count_kinds(torch.tensor([1, 0, 0, 0, 0]).bool(), low, zero, high).values())
    [1, 1, 1, 1, 1]
    """
    below, above = at_low != at_zero, at_high != at_zero
    return {
        "input always 0": int(idle.sum()),
        "constant (dead)": int((~idle & ~below & ~above).sum()),
        "answers h > 0 only": int((~below & above).sum()),
        "answers h < 0 only": int((below & ~above).sum()),
        "answers both": int((below & above).sum()),
    }


def plot_f_w(path: Path, sampled: Sampled, kinds: Mapping[str, int], title: str) -> Path:
    """Plot f_w(h) of each dimension over its range, the change since the start of training, and the kinds."""
    h, now, start = sampled.h.numpy(), sampled.now.numpy(), sampled.start.numpy()
    figure, (left, middle, right) = pyplot().subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    figure.suptitle(title, fontsize=9)
    faint = max(0.15, min(1.0, 30 / h.shape[1]))
    left.plot(h, now, color=COLOURS["other"], lw=0.5, alpha=faint)
    widest = int((h[-1] - h[0]).argmax())
    left.plot(h[:, widest], start[:, widest], color=COLOURS["adapted"], lw=1.2, ls="--", label="at the start")
    left.set_ylabel("f_w(h), a line for each dimension", fontsize=8)
    left.legend(fontsize=7, frameon=False)
    middle.plot(h, now - start, color=COLOURS["other"], lw=0.5, alpha=faint)
    middle.set_ylabel("change since the start", fontsize=8)
    for ax in (left, middle):
        ax.set_xlabel("h, an entry of z − z'", fontsize=8)
    y = range(len(kinds))[::-1]
    right.barh(y, list(kinds.values()), color=COLOURS["third"], height=0.6)
    for position, count in zip(y, kinds.values()):
        right.text(count, position, f" {count}", va="center", fontsize=8)
    right.set_yticks(y, list(kinds), fontsize=8)
    right.set_xlabel("dimensions", fontsize=8)
    for ax in (left, middle, right):
        ax.tick_params(labelsize=7)
        hide_spines(ax)
    return save_figure(figure, path)
