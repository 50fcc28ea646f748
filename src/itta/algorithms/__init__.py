"""Training methods. This table is the registry: the command line, the docs and the tests read it."""

import importlib

from itta.algorithms.base import Algorithm, Task
from itta.algorithms.consistency import Consistency
from itta.algorithms.erm import ERM
from itta.algorithms.itta import ITTA
from itta.algorithms.mixstyle import MixStyle
from itta.errors import InputError, unknown

ALGORITHMS: dict[str, type[Algorithm]] = {a.name: a for a in (ERM, MixStyle, Consistency, ITTA)}


def find_algorithm(name: str) -> type[Algorithm]:
    """Look a method up by name, or import one of the user's own as package.module:Class."""
    if ":" in name:
        return import_algorithm(name)
    if name not in ALGORITHMS:
        raise unknown("algorithm", name, list(ALGORITHMS))
    return ALGORITHMS[name]


def import_algorithm(name: str) -> type[Algorithm]:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"cannot import the algorithm {name!r}: {error}. It is written package.module:Class."
        ) from error
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise InputError(f"{name!r} is not a subclass of itta.algorithms.Algorithm.")
    return found


__all__ = ["ALGORITHMS", "Algorithm", "Task", "find_algorithm"]
