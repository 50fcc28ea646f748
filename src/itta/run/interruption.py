"""Ctrl-C and SIGTERM: stop after a whole step, with a checkpoint."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop, and stopped after a whole step with a checkpoint."""


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C or SIGTERM into a request to stop after the step; a second one stops at once."""
    asked = [False]

    def ask(number: int, frame: object) -> None:
        if asked[0]:
            raise KeyboardInterrupt
        asked[0] = True

    try:
        before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: the caller handles signals
        yield lambda: asked[0]
        return
    try:
        yield lambda: asked[0]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
