"""An adapted stream: a target, the answers to it before and after adaptation, and the adapter as the stream left it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from itta.adapters import Adapter, Guard
from itta.adapters.itta_plus import ITTAPlus
from itta.data.target import Target
from itta.metrics.outcome import Outcome
from itta.models.trained import Trained


@dataclass(frozen=True)
class AdaptedStream:
    model: Trained  # as trained
    target: Target
    adapter: Adapter  # after its pass over the target
    before: Outcome  # of the model as trained
    after: Outcome  # of the adapter
    batch_size: int
    estimate: Mapping[str, float] = field(default_factory=dict)  # accuracy after, without labels: see `Stream`
    estimated: tuple[float, ...] = ()  # how probably each answer is right, by the estimate

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.model.classes)


def diagnosis_of(adapter: Adapter) -> dict[str, Any] | None:
    """Return the diagnosis of itta+, guarded or not; None for other adapters."""
    inner = adapter.inner if isinstance(adapter, Guard) else adapter
    return inner.diagnosis() if isinstance(inner, ITTAPlus) else None
