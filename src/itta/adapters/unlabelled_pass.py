"""One pass over images without labels: an adapter learns from every image and predicts none."""

from collections.abc import Iterable

from torch import Tensor

from itta.adapters.base import Adapter
from itta.progress import ReportProgress, silent


def observe_all(adapter: Adapter, batches: Iterable[Tensor], total: int = 0, report: ReportProgress = silent) -> None:
    """Let an adapter learn once from all batches. ``total`` is the number of images, for the progress report."""
    done = 0
    for x in batches:
        adapter.observe(x)
        done += len(x)
        report(adapter.name, done, total)
