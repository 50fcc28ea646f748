"""On this machine: one process for each trial, so that a crash costs one trial, which can be resumed."""

import math
import multiprocessing
import os
import threading
from collections.abc import Iterator, Sequence
from multiprocessing import connection
from typing import Any

from itta.errors import InputError
from itta.progress import ReportProgress
from itta.run.job import Ending, Job, attempt
from itta.sweep.engines import EngineOptions

SLOTS = 4  # at most, unless the user asks for more: each holds its own images


def default_slots() -> int:
    return min(SLOTS, os.cpu_count() or 1)


def slots_here(gpus: float) -> int:
    """Return how many trials run at a time if the user does not say: as many as the GPUs hold, or a few on the CPU."""
    return slots_on_gpus(gpus, visible_gpus()) if gpus > 0 else default_slots()


def threads_each(slots: int) -> int:
    """Divide the cores of this machine between the slots."""
    return max(1, (os.cpu_count() or 1) // max(1, slots))


def visible_gpus() -> tuple[str, ...]:
    """List the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return tuple(named.split(",")[:count]) if named else tuple(map(str, range(count)))


def gpus_of_slot(slot: int, gpus: float, visible: Sequence[str]) -> tuple[str, ...]:
    """Return the GPUs of a slot that needs ``gpus`` of them. With less than one, several slots share a GPU.

    >>> [gpus_of_slot(slot, 2, "0123") for slot in range(2)], [gpus_of_slot(slot, 0.5, "01") for slot in range(4)]
    ([('0', '1'), ('2', '3')], [('0',), ('0',), ('1',), ('1',)])
    """
    if gpus < 1:
        return (visible[slot // math.floor(1 / gpus)],)
    first = slot * math.ceil(gpus)
    return tuple(visible[first : first + math.ceil(gpus)])


def slots_on_gpus(gpus: float, visible: Sequence[str]) -> int:
    """Return how many trials that need ``gpus`` each fit on the GPUs.

    >>> slots_on_gpus(2, "01234"), slots_on_gpus(0.5, "01"), slots_on_gpus(1, "")
    (2, 4, 0)
    """
    return len(visible) * math.floor(1 / gpus) if gpus < 1 else len(visible) // math.ceil(gpus)


class Local:
    """Gives each trial that needs GPUs its own: a worker sees those of its slot and no others."""

    def __init__(self, options: EngineOptions, report: ReportProgress) -> None:
        self.slots = options.slots or default_slots()
        self.gpus, self.visible = options.gpus, visible_gpus() if options.gpus > 0 else ()
        if options.gpus > 0:
            self.slots = self.check_gpus(options)
        self.free = list(range(self.slots))
        self.slot_of: dict[str, int] = {}
        self.report = report
        self.context = multiprocessing.get_context("spawn")
        self.processes: dict[str, Any] = {}
        self.heard: dict[connection.Connection, str] = {}  # a pipe for each: a queue's lock could die with a worker
        self.endings: dict[str, Ending] = {}

    def check_gpus(self, options: EngineOptions) -> int:
        """Return the number of slots; refuse more than the GPUs of this machine allow."""
        most = slots_on_gpus(options.gpus, self.visible)
        if most < max(1, options.slots):
            raise InputError(
                f"{max(1, options.slots)} trials at a time with --gpus {options.gpus:g} each do not fit on the "
                f"{len(self.visible)} GPUs that torch finds here: lower --slots or --gpus, or add --device cpu."
            )
        return options.slots or most

    def start(self, name: str, job: Job) -> None:
        receiver, sender = self.context.Pipe(duplex=False)
        self.heard[receiver] = name
        slot = self.slot_of[name] = self.free.pop(0)
        gpus = gpus_of_slot(slot, self.gpus, self.visible) if self.gpus > 0 else None
        process = self.context.Process(target=work, args=(job, sender, gpus))
        process.start()
        self.processes[name] = process
        sender.close()  # so that the pipe ends when the worker does

    def ended(self) -> Iterator[tuple[str, Ending]]:
        self.listen()
        speaking = set(self.heard.values())
        for name in [n for n, p in self.processes.items() if n not in speaking and not p.is_alive()]:
            status = self.processes.pop(name).exitcode
            self.free.append(self.slot_of.pop(name))
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


def work(job: Job, sender: connection.Connection, gpus: Sequence[str] | None = None) -> None:
    """Do a job in a worker process, and send progress and ending to the launcher."""
    if gpus is not None:  # before torch looks for GPUs
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
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
