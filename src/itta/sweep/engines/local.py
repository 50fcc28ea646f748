"""On this machine: one process for each trial, so that a crash costs one trial, which can be resumed."""

import multiprocessing
import os
import threading
from collections.abc import Iterator
from multiprocessing import connection
from typing import Any

from itta.run.job import Ending, Job, attempt
from itta.sweep.engines import Options, Report

SLOTS = 4  # at the most, unless told: each holds its own images


def default_slots() -> int:
    return min(SLOTS, os.cpu_count() or 1)


def threads_each(slots: int) -> int:
    """This machine's cores, divided."""
    return max(1, (os.cpu_count() or 1) // max(1, slots))


class Local:
    def __init__(self, options: Options, report: Report) -> None:
        self.slots = options.slots or default_slots()
        self.report = report
        self.context = multiprocessing.get_context("spawn")
        self.processes: dict[str, Any] = {}
        self.heard: dict[connection.Connection, str] = {}  # a pipe for each: a queue's lock could die with a worker
        self.endings: dict[str, Ending] = {}

    def start(self, name: str, job: Job) -> None:
        receiver, sender = self.context.Pipe(duplex=False)
        self.heard[receiver] = name
        self.processes[name] = self.context.Process(target=work, args=(job, sender))
        self.processes[name].start()
        sender.close()  # so that the pipe ends when the worker does

    def ended(self) -> Iterator[tuple[str, Ending]]:
        self.listen()
        speaking = set(self.heard.values())
        for name in [n for n, p in self.processes.items() if n not in speaking and not p.is_alive()]:
            status = self.processes.pop(name).exitcode
            yield name, self.endings.pop(name, Ending("crashed", f"its process ended with status {status}"))

    def listen(self) -> None:
        """Pass on a word of each worker that has one, waiting a moment for the first; forget those that have ended."""
        for receiver in connection.wait(list(self.heard), timeout=0.2):
            assert isinstance(receiver, connection.Connection)
            name = self.heard[receiver]
            try:
                what = receiver.recv()
            except (EOFError, OSError):  # ended, perhaps in the middle of a word
                del self.heard[receiver]
                receiver.close()
                continue
            if isinstance(what, Ending):
                self.endings[name] = what
            else:
                self.report(name, what)

    def close(self) -> None:
        for process in self.processes.values():  # after Ctrl-C they finish their step and save a checkpoint
            process.join()


def work(job: Job, sender: connection.Connection) -> None:
    """What a worker process does."""
    threading.Thread(target=leave_with_launcher, daemon=True).start()

    def tell(what: int | Ending) -> None:
        try:
            sender.send(what)
        except BrokenPipeError:
            leave()

    tell(attempt(job, tell))


def leave_with_launcher() -> None:
    """End when the launcher is no more: the same command again must not wait for workers that nobody hears."""
    launcher = multiprocessing.parent_process()
    assert launcher is not None
    connection.wait([launcher.sentinel])
    leave()


def leave() -> None:
    os._exit(1)  # at once, as if killed with the launcher: the trial is resumed from its checkpoint
