"""A training that was stopped, however it was stopped, ends as one that was not."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from itta import records
from itta.cli import main
from itta.run.directory import alone
from itta.store.tensors import load_tensors, save_tensors

# Each run dies at its n-th write to the disk, be it before a file is safe or before it gets its name. Forks of one
# process, so that torch is imported once; reads one command a line.
DIE_AT_WRITES = """
import os, shlex, signal, sys
import torch._decomp.decompositions_for_jvp, torch._dynamo  # the first step would import them in every child
import itta.run.train
from itta.cli import main

itta.run.train.CHECKPOINT_SECONDS = 0

def die_at(n):
    writes = iter(range(1, n))
    def dying(real):
        def call(*args):
            if next(writes, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args)
        return call
    os.fsync, os.replace = dying(os.fsync), dying(os.replace)

for command in sys.stdin.read().splitlines():
    for n in range(1, 15):
        child = os.fork()
        if child == 0:
            die_at(n)
            os._exit(main(shlex.split(command)))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, (n, command)
"""
RESULTS = ("model.safetensors", "model.json", "records.jsonl", "steps.jsonl", "trial.json", "checkpoint.safetensors")


def command(photos: Path, out: Path, algorithm: str, steps: int) -> list[str]:
    return [
        "train", str(photos), "--target", "night", "--out", str(out), "--algorithm", algorithm, "--steps", str(steps),
        "--eval-every", "5", "--backbone", "small_cnn", "--weights", "none", "--image-size", "16", "--json",
        "--threads", "1", "--keep-checkpoint", "--no-page", "--set", "batch_size=4",
    ]  # fmt: skip


def contents(out: Path, names: tuple[str, ...] = RESULTS) -> dict[str, bytes]:
    return {name: (out / name).read_bytes() for name in names}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_any_write_it_goes_on_to_the_identical_result(photos, tmp_path):
    more = {"itta": [], "erm": ["--average", "0.9", "--schedule", "cosine", "--head-start"]}
    resumed = {name: [*command(photos, tmp_path / name, name, 30), *more[name]] for name in more}
    commands = "\n".join(map(shlex.join, resumed.values()))
    driver = [sys.executable, "-c", DIE_AT_WRITES]
    done = subprocess.run(driver, input=commands, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for name, words in resumed.items():
        assert (tmp_path / name / "checkpoint.safetensors").is_file()
        assert not (tmp_path / name / "model.json").exists()
        assert main(words) == 0
        assert main([*command(photos, tmp_path / f"whole-{name}", name, 30), *more[name]]) == 0
        assert contents(tmp_path / name) == contents(tmp_path / f"whole-{name}")
        assert not list((tmp_path / name).glob("*.tmp"))


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [("SIGINT", 130), ("SIGTERM", 130), ("SIGKILL", -9)])
def test_a_signal_from_outside_stops_it_and_the_same_command_goes_on(
    number, status, slow, photos, tmp_path, monkeypatch
):
    out = tmp_path / "run"
    args = command(photos, out, slow, 30)
    process = subprocess.Popen([sys.executable, "-m", "itta", *args], stderr=subprocess.PIPE, text=True)
    wait_for(lambda: (out / "checkpoint.safetensors").is_file(), process)
    process.send_signal(getattr(signal, number))
    _, printed = process.communicate(timeout=60)
    assert process.returncode == status, printed
    assert "Traceback" not in printed
    if status == 130:
        assert "same command goes on" in printed
    assert (out / "checkpoint.safetensors").is_file()
    assert not (out / "model.json").exists()
    monkeypatch.setenv("ITTA_TEST_SECONDS", "0")
    assert main(args) == 0
    assert main(command(photos, tmp_path / "whole", slow, 30)) == 0
    assert contents(out) == contents(tmp_path / "whole")


def wait_for(there: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 120
    while not there():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_torn_record_is_made_again(photos, tmp_path, capsys):
    args = command(photos, tmp_path / "run", "erm", 10)
    assert main(args) == 0
    before = contents(tmp_path / "run")
    path = tmp_path / "run" / "records.jsonl"
    path.write_bytes(path.read_bytes() + b'{"schema": 1, "trial": {"data')
    assert main(args) == 0
    assert contents(tmp_path / "run") == before
    assert [r.step for r in records.read(path)] == [5, 10]


def test_a_finished_run_is_not_trained_again(photos, tmp_path, monkeypatch):
    from itta.algorithms import ALGORITHMS

    args = command(photos, tmp_path / "run", "itta", 5)
    assert main(args) == 0
    before = contents(tmp_path / "run")
    monkeypatch.setattr(ALGORITHMS["itta"], "update", lambda self, batches: pytest.fail("trained again"))
    assert main(args) == 0
    assert contents(tmp_path / "run") == before


@pytest.mark.parametrize(
    ("flags", "named"),
    [(["--seed", "1"], "trial_seed"), (["--algorithm", "mixstyle"], "algorithm"), (["--set", "lr=1e-3"], "overrides")],
)
def test_a_directory_keeps_the_trial_it_holds(flags, named, photos, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(command(photos, out, "erm", 5)) == 0
    before = contents(out)
    capsys.readouterr()
    assert main([*command(photos, out, "erm", 5), *flags]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("itta: error:")
    assert printed.count("\n") == 1
    assert named in printed
    assert contents(out) == before


def test_a_directory_in_use_is_left_alone(photos, tmp_path, capsys):
    out = tmp_path / "run"
    with alone(out):
        assert main(command(photos, out, "erm", 5)) == 2
        assert f"another process is writing into {out}" in capsys.readouterr().err
        assert not (out / "trial.json").exists()
    assert main(command(photos, out, "erm", 5)) == 0


def test_a_directory_of_something_else_is_left_alone(photos, tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("years of work")
    assert main(command(photos, tmp_path, "erm", 5)) == 2
    assert "not empty" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"dataset": "emoji", "colour": 1}'])
def test_a_damaged_trial_is_told_in_one_line(text, photos, tmp_path, capsys):
    (tmp_path / "trial.json").write_text(text)
    assert main(command(photos, tmp_path, "erm", 5)) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("itta: error:")
    assert "trial.json" in printed
    assert printed.count("\n") == 1


def test_a_checkpoint_of_another_version_is_told_in_one_line(photos, tmp_path, capsys):
    args = command(photos, tmp_path / "run", "erm", 5)
    assert main(args) == 0
    path = tmp_path / "run" / "checkpoint.safetensors"
    tensors, metadata = load_tensors(path)
    metadata["progress"]["log_steps"] = 3
    save_tensors(path, tensors, metadata)
    (tmp_path / "run" / "model.json").unlink()  # as if it had been killed before the end
    capsys.readouterr()
    assert main(args) == 2
    printed = capsys.readouterr().err
    assert "another version" in printed
    assert "log_steps" in printed
    assert printed.count("\n") == 1


def test_a_damaged_checkpoint_is_told_in_one_line(photos, tmp_path, capsys):
    args = command(photos, tmp_path / "run", "erm", 5)
    assert main(args) == 0
    path = tmp_path / "run" / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    (tmp_path / "run" / "model.json").unlink()  # as if it had been killed before the end
    capsys.readouterr()
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    assert main(args) == 2
    printed = capsys.readouterr().err
    assert str(path) in printed
    assert printed.count("\n") == 1
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before


def test_a_finished_training_is_not_repeated_and_leaves_no_checkpoint(photos, tmp_path, run_itta, monkeypatch):
    args = [word for word in command(photos, tmp_path / "run", "erm", 5) if word != "--keep-checkpoint"]
    first = run_itta(*args)
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()
    before = contents(tmp_path / "run", RESULTS[:-1])
    monkeypatch.setattr("itta.run.train.learn", lambda *about: pytest.fail("trained again"))
    assert run_itta(*args) == first
    assert contents(tmp_path / "run", RESULTS[:-1]) == before
