"""Tables of costs: a profile as text and as JSON."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch

from itta.explain.profile import Cost, Usage
from itta.report.paper import Resources
from itta.report.tables import Table


def profile_json(usages: Sequence[Usage]) -> dict[str, Any]:
    return {
        "flops": "multiply-adds, each counted once, of a batch",
        "memory": "bytes of all tensors alive at the worst moment, weights and batch included",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "rows": [asdict(u) for u in usages],
    }


COLUMNS: dict[str, Callable[[Cost, int], str]] = {  # (cost, images in the batch) -> text
    "GFLOPs": lambda cost, batch: f"{cost.flops / batch / 1e9:.2f}",
    "M params": lambda cost, batch: f"{cost.parameters / 1e6:.2f}",
    "ms": lambda cost, batch: f"{cost.median_ms:.1f}",
    "p95 ms": lambda cost, batch: f"{cost.p95_ms:.1f}",
    "MiB": lambda cost, batch: f"{cost.peak_bytes / 2**20:.0f}",
}


def profile_table(usages: Sequence[Usage], paper: Sequence[Resources] = ()) -> Table:
    """The paper's table of resources, with adaptation alone as a third line; a refused batch size has dashes.

    The paper's own numbers come last.
    """
    rows = []
    for u in usages:
        phases = {"predict": u.inference, "adapt": u.adaptation, "both": u.both}
        for phase, cost in phases.items():
            if cost is not None:
                cells = [column(cost, u.batch) for column in COLUMNS.values()]
                rows.append([u.mode.name, str(u.batch), phase, *cells])
        if u.refused:
            rows.append([u.mode.name, str(u.batch), "refused", *["-" for _ in COLUMNS]])
    for r in paper:
        printed = [f"{r.gflops:.2f}", f"{r.million_parameters:.2f}", f"{1000 * r.seconds:.0f}"]
        rows.append([f"{r.mode}, paper", "-", r.phase, *printed, *["-" for _ in range(len(COLUMNS) - len(printed))]])
    return Table("", ["", "batch", "", *COLUMNS], rows)
