"""What a trained model tells about its training: its logs step by step, and what ITTA's f_w has become."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from itta import records
from itta.algorithms import Algorithm
from itta.errors import InputError
from itta.explain.heatmap_plots import plot_fw, plot_training
from itta.nn.affine_stack import AffineStack
from itta.records import replace_text
from itta.run.train import STEPS
from itta.schema import numbers_of
from itta.store.model import OwnCode, load

POINTS = 101  # where f_w is sampled, in each dimension
Curves = dict[str, tuple[np.ndarray, np.ndarray]]  # name -> steps and values


def inspect(model: Path, out: Path | None = None, reach: float = 1.0, own: OwnCode = OwnCode()) -> dict[str, Any]:
    """The numbers, and with ``out`` figures of them; ``reach`` is for a model that does not tell what f_w saw."""
    if not 0 < reach < np.inf:
        raise InputError(f"the range of inputs is given by a number above 0, got {reach:g}.")
    trained = load(model, own.algorithm, own.backbone)
    curves, source = training_curves(model)
    result: dict[str, Any] = {
        "model": str(model),
        "algorithm": trained.name,
        "logs_from": source,
        "training": {name: along(*curve) for name, curve in curves.items()},
        "f_w": None,
    }
    files = []
    if out is not None and curves:
        files.append(plot_training(out / "training.png", *split_curves(curves)))
    f_w = getattr(trained, "f_w", None)
    if isinstance(f_w, AffineStack):
        h, seen = inputs(trained, reach)
        with torch.no_grad():
            sampled, start = f_w(h), AffineStack(tuple(f_w.weight.shape[1:]), len(f_w.weight))(h)
        told = "seen on source images" if seen else f"±{reach:g}, assumed"
        result["f_w"] = describe(f_w, h, sampled, start) | {"range": told}
        if out is not None:
            title = f"f_w: {f_w.weight.shape[1]} dimensions, {len(f_w.weight)} layers, inputs {told}"
            kinds = result["f_w"]["kinds"]
            files.append(plot_fw(out / "f_w.png", h.numpy(), sampled.numpy(), start.numpy(), kinds, title))
    if out is not None:
        replace_text(out / "inspect.json", json.dumps(result, indent=2) + "\n")
        files.append(out / "inspect.json")
    return result | {"files": [str(f) for f in files]}


def training_curves(model: Path) -> tuple[Curves, str | None]:
    """Every logged quantity along training, and the file: step by step, or as means between evaluations."""
    if (model / STEPS).is_file():
        lines, source = list(records.read_steps(model / STEPS)), STEPS
    elif (model / "records.jsonl").is_file():
        found = records.read(model / "records.jsonl")
        lines, source = [{"step": r.step, **numbers_of(r.logs)} for r in found], "records.jsonl"
    else:
        return {}, None
    names = dict.fromkeys(name for line in lines for name in line if name != "step")
    curves: Curves = {}
    for name in names:
        there = [(line["step"], line[name]) for line in lines if name in line]
        curves[name] = (np.array([s for s, _ in there]), np.array([v for _, v in there]))
    return curves, source


def split_curves(curves: Curves) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    return {name: steps for name, (steps, _) in curves.items()}, {name: v for name, (_, v) in curves.items()}


def along(steps: np.ndarray, values: np.ndarray) -> dict[str, Any]:
    """A quantity in brief: its mean, and that of the first and last tenth of what was logged."""
    n = max(1, len(values) // 10)
    return {
        "values": len(values),
        "mean": float(values.mean()),
        "first_tenth": float(values[:n].mean()),
        "last_tenth": float(values[-n:].mean()),
        "positive": float((values > 0).mean()),
    }


def inputs(trained: Algorithm, reach: float) -> tuple[Tensor, bool]:
    """Where to sample f_w, [points, dims], and whether that is what it saw; 0, no difference at all, always is."""
    dim = trained.backbone.dim
    seen = trained.differences
    low = seen["low"].clamp(max=0) if seen else torch.full((dim,), -reach)
    high = seen["high"].clamp(min=0) if seen else torch.full((dim,), reach)
    share = torch.linspace(0, 1, POINTS)[:, None]
    return low + (high - low) * share, seen is not None


@torch.no_grad()
def describe(f_w: AffineStack, h: Tensor, sampled: Tensor, start: Tensor) -> dict[str, Any]:
    """How many dimensions do what, and how far f_w is from where it began: ReLU, or with one layer the identity."""
    at_zero = f_w(torch.zeros_like(h[0]))
    kinds = kinds_of((h == 0).all(0), sampled[0], at_zero, sampled[-1])
    moved = (sampled - start).square().mean().sqrt() / start.square().mean().sqrt()
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


def kinds_of(idle: Tensor, at_low: Tensor, at_zero: Tensor, at_high: Tensor) -> Mapping[str, int]:
    """Count dimensions by the side of zero on which f_w answers; ``idle`` are those whose input is always zero.

    A layer ReLU(a·h + b) never changes direction, hence neither does a stack of them: it is constant between two points
    if and only if it has the same value at both, so the ends tell, and no sample can be missed in between.

    >>> low, zero, high = torch.tensor([0.0, 0, 0, 1, 1]), torch.zeros(5), torch.tensor([0.0, 0, 2, 0, -1])
    >>> list(kinds_of(torch.tensor([1, 0, 0, 0, 0]).bool(), low, zero, high).values())
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
