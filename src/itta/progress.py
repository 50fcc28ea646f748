"""Progress: the one callback through which long work reports how far it is."""

from collections.abc import Callable

ReportProgress = Callable[[str, int, int], None]
"""Called with the name of the work, the units done so far, and the units in all."""


def silent(name: str, done: int, total: int) -> None:
    """Report nothing. This is the default of every `report` parameter."""


def named(report: ReportProgress, name: str) -> ReportProgress:
    """Report under ``name`` instead of the name that the work itself gives.

    >>> report = named(lambda name, done, total: print(f"{name}: {done} of {total}"), "decode photo")
    >>> report("decode", 3, 10)
    decode photo: 3 of 10
    """
    return lambda _, done, total: report(name, done, total)
