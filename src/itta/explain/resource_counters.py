"""Counters of resources: multiply-adds and peak memory of a call.

FLOPs are multiply-adds, each counted once: those of convolutions and matrix products by torch's own counter, and one
for every entry that is multiplied, divided or normalised, forward and backward, the optimiser's step included.
Additions alone, comparisons and pooling are not counted.

Memory is the highest sum of all tensors alive at one moment. It is torch's own account of its allocations, exact and
repeatable. It excludes memory that torch does not allocate: that of the interpreter, and scratch space of libraries.
"""

import json
import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.profiler
from torch.utils.flop_counter import FlopCounterMode

aten = torch.ops.aten
BY_ENTRY = (
    *(aten.mul, aten.mul_, aten.div, aten.div_, aten.addcmul, aten.addcmul_, aten.addcdiv, aten.addcdiv_),
    *(aten.lerp, aten.lerp_, aten.native_batch_norm, aten._native_batch_norm_legit, aten.cudnn_batch_norm),
    *(aten._native_batch_norm_legit_no_training, aten.native_batch_norm_backward, aten.cudnn_batch_norm_backward),
    *(aten.native_group_norm, aten.native_group_norm_backward),
    *(aten.native_layer_norm, aten.native_layer_norm_backward),
)


def count_flops(call: Callable[[], object]) -> float:
    """Multiply-adds of a call."""
    with FlopCounterMode(display=False, custom_mapping=dict.fromkeys(BY_ENTRY, count_entries)) as counter:
        call()
    return counter.get_total_flops() / 2


def count_entries(*args: Any, out_shape: Any, **kwargs: Any) -> int:
    """One multiply-add for each entry of the output, in the unit of torch's counter: two for each."""
    shape = next((s for s in out_shape if isinstance(s, torch.Size)), None) if type(out_shape) is tuple else out_shape
    return 2 * math.prod(shape or ())


def wait_for_gpu() -> None:
    """Wait until a GPU has done all its work, if there is one in use; a clock must not stop before."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def peak_gpu_memory(call: Callable[[], object]) -> float:
    """Bytes of the tensors alive on the GPU at the worst moment, without those that were there before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return float(torch.cuda.max_memory_allocated() - before)


def peak_memory(call: Callable[[], object]) -> float:
    """Bytes of the tensors alive at the worst moment; only tensors made during the call count."""
    if torch.cuda.is_initialized():  # the model is on a GPU: itta computes on one device only
        return peak_gpu_memory(call)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise the profiler writes to stderr
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return float(max(event["args"]["Total Allocated"] for event in events if event.get("name") == "[memory]"))
