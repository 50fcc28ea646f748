"""Rows of a prediction that was interrupted, and the state in which the adapter was then.

A file beside the rows holds the adapter's state and the number of images that are done. It exists only while rows are
missing. It is written every two seconds, between two batches. The same command goes on from there: rows that are newer
are cut off and predicted again. So every image has one row, as if the command had never stopped.
"""

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Annotated, Any

from msgspec import Meta

from itta.adapters.base import Adapter
from itta.errors import InputError
from itta.schema import conform
from itta.store.tensors import load_tensors, save_tensors

SUFFIX = ".unfinished"
EVERY = 2.0  # seconds between two states

Count = Annotated[int, Meta(ge=0)]


@dataclass(frozen=True)
class Done:
    """The images that are done, and the command that did them."""

    command: str  # all that the rows depend on
    images: Count = 0
    unreadable: Count = 0
    size: Count = 0  # bytes of the rows


class UnfinishedRows:
    """The rows of one command. ``done`` says where to go on."""

    def __init__(self, out: Path, adapter: Adapter, command: str) -> None:
        self.out, self.path, self.adapter = out, out.with_name(out.name + SUFFIX), adapter
        self.done, self.saved = self.recover(command), time.monotonic()

    def recover(self, command: str) -> Done:
        """Return what an interrupted command of the same kind has done, and give the adapter its state."""
        fresh = Done(command)
        if not self.path.is_file() or not self.out.is_file():
            return fresh
        try:
            state, facts = load_tensors(self.path)
            done = conform(Done, facts)
        except InputError as error:
            raise InputError(f"{error} Delete {self.path}, and all images are predicted anew.") from error
        if done.command != command or self.out.stat().st_size < done.size:
            return fresh
        self.adapter.load_state_dict(state)
        os.truncate(self.out, done.size)
        return done

    def note(self, images: int, unreadable: int, rows: IO[str]) -> None:
        """Count a batch with its rows, and save now and then."""
        rows.flush()
        done = self.done
        self.done = Done(done.command, done.images + images, done.unreadable + unreadable, rows.tell())
        if time.monotonic() - self.saved >= EVERY:
            self.save()

    def save(self) -> None:
        save_tensors(self.path, self.adapter.state_dict(), asdict(self.done))
        self.saved = time.monotonic()

    def finish(self) -> None:
        self.path.unlink(missing_ok=True)


def command_of(*parts: Any) -> str:
    """Return a text that is equal only if all parts are."""
    return repr(parts)
