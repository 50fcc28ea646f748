"""Values of settings in records: as text, and as values to compare."""

from collections.abc import Mapping
from typing import Any


def as_written(value: Any) -> str:
    """A value as it is written on a command line.

    >>> as_written(1e-4), as_written(("a", "b")), as_written(True), as_written(5001)
    ('0.0001', 'a,b', 'true', '5001')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return ",".join(map(as_written, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def hashable(value: Any) -> Any:
    """A value to compare and to hash: the same before and after a trip through JSON.

    >>> hashable({"b": [1, 2], "a": (3,)})
    (('a', (3,)), ('b', (1, 2)))
    """
    if isinstance(value, Mapping):
        return tuple(sorted((k, hashable(v)) for k, v in value.items()))
    return tuple(map(hashable, value)) if isinstance(value, (list, tuple)) else value


def has_settings(settings: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether settings have the wanted values; a missing one counts as None."""
    return all(hashable(settings.get(name)) == hashable(value) for name, value in wanted.items())


def without_counts(settings: Mapping[str, Any]) -> dict[str, Any]:
    """An adapter's settings without the number of times its guard intervened."""
    return {k: v for k, v in settings.items() if k != "interventions"}
