import doctest
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from itta.algorithms import ALGORITHMS

ROOT = Path(__file__).parents[1]
TINY = ("--backbone", "small_cnn", "--image-size", "16", "--batch", "4", "--rounds", "1", "--threads", "1")
STEPS = (
    "erm", "consistency", "itta", "itta last", "itta paper", "itta every 5", "itta double backward",
    "itta double backward shared",
)  # fmt: skip
ADAPTS = (
    "source", "itta", "itta channel", "itta last", "itta 2 steps", "itta 3 steps", "itta episodic", "itta+", "t3a",
    "lame", "shot", "sar",
)  # fmt: skip
WITH_BATCH_NORM = (*ADAPTS, "tent", "bn_adapt", "eata")

KINDS = {
    "dann": {"dann generator", "dann discriminator"},
    "cdann": {"cdann generator", "cdann discriminator"},
    "metareg": {"metareg meta", "metareg final"},
}
METHODS = set().union(*(KINDS.get(name, {name}) for name in ALGORITHMS))


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return lambda name: importlib.import_module(f"benchmarks.{name}")


@pytest.fixture
def run(load, monkeypatch):
    """Run a benchmark's command in this process; the number of threads it sets is put back."""
    threads = torch.get_num_threads()

    def call(name: str, *args: str) -> None:
        module = load(name)
        monkeypatch.setattr(sys, "argv", [name, *args])
        load("timing").main(name, module.Options, module.measure, None)

    yield call
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("name", "flags", "expected"),
    [
        ("step_cost", ["--cosine"], {*STEPS, *(f"{s} memory" for s in STEPS), "itta last cosine"}),
        ("adapt_cost", [], {*ADAPTS, *(f"{a} flops" for a in ADAPTS)}),
        ("methods_cost", ["--domains", "2"], METHODS),
    ],
)
def test_json_is_one_object_of_ratios(name, flags, expected):
    command = [sys.executable, "-m", f"benchmarks.{name}", *TINY, *flags, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert set(found) == expected
    for entry in found.values():
        assert set(entry) == {"ratio", "spread"}
        assert entry["ratio"] > 0
        assert entry["spread"] >= 0
    base = {"step_cost": "consistency", "adapt_cost": "source", "methods_cost": "erm"}[name]
    assert found[base] == {"ratio": 1.0, "spread": 0.0}


def test_table_has_a_row_per_job(run, capsys):
    run("adapt_cost", *TINY)
    printed = capsys.readouterr().out
    for name in ADAPTS:
        assert f" {name} " in printed


@pytest.mark.parametrize(
    ("args", "message"), [(("--backbone", "resnet19"), "Choices:"), (("--batch", "1"), "batch must be at least 2")]
)
def test_wrong_settings_are_told_in_words(run, capsys, args, message):
    with pytest.raises(SystemExit) as stopped:
        run("step_cost", *args)
    printed = capsys.readouterr()
    assert message in f"{stopped.value} {printed.out} {printed.err}"


def test_documented_examples(load):
    assert doctest.testmod(load("timing")).failed == 0


@pytest.mark.parametrize("order", ["shared", "paper"])
def test_the_yardstick_computes_what_it_is_compared_with(load, order):
    step_cost = load("step_cost")
    options = step_cost.Options(image_size=32, batch=4)
    models = []
    for cls in (step_cost.ITTA, step_cost.DoubleBackward):
        torch.manual_seed(0)
        model = cls(options.task(), step_cost.default(cls.Hparams, update_order=order)).train()
        torch.manual_seed(1)
        step_cost.step(model, step_cost.make_batch(options), seed=0)
        models.append(model)
    exact, plain = models
    torch.testing.assert_close(step_cost.w_gradient(plain), step_cost.w_gradient(exact), rtol=1e-3, atol=1e-6)
    for ours, theirs in zip(exact.main_parameters(), plain.main_parameters()):
        torch.testing.assert_close(theirs.grad, ours.grad, rtol=1e-3, atol=1e-5)


def test_memory_counts_what_is_alive_at_once(load):
    peak_memory = load("step_cost").peak_memory

    def one_after_the_other() -> None:
        for _ in range(3):
            torch.zeros(2**18)

    def together() -> None:
        kept = [torch.zeros(2**18) for _ in range(3)]
        assert len(kept) == 3

    assert peak_memory(one_after_the_other) == pytest.approx(2**20, rel=0.01)
    assert peak_memory(together) == pytest.approx(3 * 2**20, rel=0.01)
