"""On this machine: one process for each trial, so that a crash costs one trial, which can be resumed."""

import multiprocessing
import os
import threading
from collections.abc import Iterator
from multiprocessing import connection
from typing import Any

from itta.progress import ReportProgress
from itta.run.job import Ending, Job, attempt
from itta.sweep.engines import EngineOptions

SLOTS = 4  # at most, unless the user asks for more: each holds its own images


def default_slots() -> int:
    return min(SLOTS, os.cpu_count() or 1)


def threads_each(slots: int) -> int:
    """Divide the cores of this machine between the slots."""
    return max(1, (os.cpu_count() or 1) // max(1, slots))


class Local:
    def __init__(self, options: EngineOptions, report: ReportProgress) -> None:
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
        """Pass on one message of each worker, waiting a moment for the first; forget workers that have ended."""
        for receiver in connection.wait(list(self.heard), timeout=0.2):
            assert isinstance(receiver, connection.Connection)
            name = self.heard[receiver]
            try:
                message = receiver.recv()
            except (EOFError, OSError):  # ended, perhaps in the middle of a message
                del self.heard[receiver]
                receiver.close()
                continue
            if isinstance(message, Ending):
                self.endings[name] = message
            else:
                self.report(name, *message)

    def close(self) -> None:
        for process in self.processes.values():  # after Ctrl-C they finish their step and save a checkpoint
            process.join()


def work(job: Job, sender: connection.Connection) -> None:
    """Do a job in a worker process, and send progress and ending to the launcher."""
    threading.Thread(target=leave_with_launcher, daemon=True).start()

    def send(message: tuple[int, int] | Ending) -> None:
        try:
            sender.send(message)
        except BrokenPipeError:
            leave()

    send(attempt(job, lambda name, done, total: send((done, total))))


def leave_with_launcher() -> None:
    """End when the launcher has ended: the same command again must not wait for workers without a launcher."""
    launcher = multiprocessing.parent_process()
    assert launcher is not None
    connection.wait([launcher.sentinel])
    leave()


def leave() -> None:
    os._exit(1)  # at once, as if killed with the launcher: the trial is resumed from its checkpoint
