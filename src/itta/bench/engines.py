"""Run several trials on this machine: one process each, so that a crash costs one trial, which can be resumed."""

import multiprocessing
import os
import queue
import time
from collections.abc import Callable, Mapping
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
    messages = context.Queue()
    threads = max(1, (os.cpu_count() or 1) // max(1, min(slots, len(waiting))))
    running: dict[str, Any] = {}
    failed: dict[str, str] = {}
    try:
        while waiting or running:
            while waiting and len(running) < slots:
                name = waiting.pop(0)
                running[name] = context.Process(target=work, args=(name, *jobs[name], threads, messages))
                running[name].start()
            collect(messages, report, failed)
            for name in [n for n, p in running.items() if not p.is_alive()]:
                process = running.pop(name)
                if process.exitcode != 0:
                    failed.setdefault(name, f"its process ended with status {process.exitcode}")
    finally:
        for process in running.values():  # after Ctrl-C they finish their step and save a checkpoint
            process.join()
    collect(messages, report, failed)
    if failed:
        name, reason = next(iter(failed.items()))
        raise InputError(f"{len(failed)} of {len(jobs)} trainings failed; {name}: {reason}. Run again to resume.")


def collect(messages: Any, report: Report, failed: dict[str, str]) -> None:
    """Pass on what the workers have said, waiting a moment for the first word."""
    deadline = time.monotonic() + 0.2
    while True:
        try:
            name, what = messages.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return
        if isinstance(what, str):
            failed[name] = what
        else:
            report(name, what)


def work(name: str, trial: Trial, out: Path, threads: int, messages: Any) -> None:
    """What a worker process does."""
    import torch

    from itta.bench.train import Interrupted, train

    torch.set_num_threads(threads)
    try:
        train(trial, out, report=lambda step, logs: messages.put((name, step)))
    except InputError as error:
        messages.put((name, str(error)))
        raise SystemExit(2) from None
    except Interrupted:
        raise SystemExit(130) from None
