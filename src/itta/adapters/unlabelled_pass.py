"""One pass over a target without labels: an adapter learns from every image and gives no answers."""

from itta.adapters.base import Adapter
from itta.data.loaders import stream
from itta.data.target import Target
from itta.progress import ReportProgress, silent


def observe_target(
    adapter: Adapter, target: Target, batch_size: int, seed: int, report: ReportProgress = silent
) -> None:
    """Let an adapter learn from all images of a target, once; ``seed`` orders them unless the target has an order."""
    done = 0
    batches = stream(target.images, target.indices, batch_size, None if target.ordered else seed, adapter.needs.batch)
    for _, x, _ in batches:
        adapter.observe(x)
        done += len(x)
        report(adapter.name, done, len(target.indices))
