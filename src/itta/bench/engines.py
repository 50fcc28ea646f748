"""Run several trials on this machine: one process each, so that a crash costs one trial, which can be resumed."""

import multiprocessing
import os
from collections.abc import Callable, Mapping
from multiprocessing import connection
from pathlib import Path
from typing import Any

from itta.errors import InputError
from itta.trial import Trial

Jobs = Mapping[str, tuple[Trial, Path]]
Report = Callable[[str, int], None]  # name of the job, steps done


def run_local(jobs: Jobs, slots: int, report: Report = lambda name, step: None) -> None:
    """Train every job whose directory holds no finished model; threads are divided between the slots."""
    waiting = [name for name, (_, out) in jobs.items() if not (out / "model.json").is_file()]
    context = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or 1) // max(1, min(slots, len(waiting))))
    running: dict[str, Any] = {}
    heard: dict[connection.Connection, str] = {}  # a pipe for each: a queue's lock could die with a worker
    failed: dict[str, str] = {}
    try:
        while waiting or running:
            while waiting and len(running) < slots:
                name = waiting.pop(0)
                receiver, sender = context.Pipe(duplex=False)
                heard[receiver] = name
                running[name] = context.Process(target=work, args=(*jobs[name], threads, sender))
                running[name].start()
                sender.close()  # so that the pipe ends when the worker does
            collect(heard, report, failed)
            for name in [n for n, p in running.items() if not p.is_alive()]:
                process = running.pop(name)
                if process.exitcode != 0:
                    failed.setdefault(name, f"its process ended with status {process.exitcode}")
    finally:
        for process in running.values():  # after Ctrl-C they finish their step and save a checkpoint
            process.join()
    while heard:
        collect(heard, report, failed)
    if failed:
        name, reason = next(iter(failed.items()))
        raise InputError(f"{len(failed)} of {len(jobs)} trainings failed; {name}: {reason}. Run again to resume.")


def collect(heard: dict[connection.Connection, str], report: Report, failed: dict[str, str]) -> None:
    """Pass on a word of each worker that has one, waiting a moment for the first; forget those that have ended."""
    for receiver in connection.wait(list(heard), timeout=0.2):
        assert isinstance(receiver, connection.Connection)
        try:
            what = receiver.recv()
        except (EOFError, OSError):  # ended, perhaps in the middle of a word
            del heard[receiver]
            receiver.close()
            continue
        if isinstance(what, str):
            failed[heard[receiver]] = what
        else:
            report(heard[receiver], what)


def work(trial: Trial, out: Path, threads: int, sender: connection.Connection) -> None:
    """What a worker process does."""
    import torch

    from itta.bench.train import Interrupted, train

    torch.set_num_threads(threads)
    try:
        train(trial, out, report=lambda step, logs: sender.send(step))
    except InputError as error:
        sender.send(str(error))
        raise SystemExit(2) from None
    except Interrupted:
        raise SystemExit(130) from None
