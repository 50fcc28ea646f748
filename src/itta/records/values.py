"""Settings as they stand in records: compared, and without what changes from run to run."""

from collections.abc import Mapping
from typing import Any


def hashable(value: Any) -> Any:
    """Return a value as it comes back from JSON, and hashable.

    >>> hashable({"b": [1, 2], "a": 3})
    (('a', 3), ('b', (1, 2)))
    """
    if isinstance(value, Mapping):
        return tuple(sorted((k, hashable(v)) for k, v in value.items()))
    return tuple(map(hashable, value)) if isinstance(value, (list, tuple)) else value


def without_counts(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return an adapter's settings without the number of times its guard stepped in."""
    return {k: v for k, v in settings.items() if k != "interventions"}
