"""What is counted is what a pencil counts; what is measured is there for every mode and batch."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from itta.adapters import adapt
from itta.algorithms.erm import ERM
from itta.cli import main
from itta.errors import InputError
from itta.explain.profile import (
    Mode,
    Network,
    added_parameters,
    default_modes,
    measure_usage,
    profile_model,
    seeds_of_round,
    used_parameters,
)
from itta.explain.profile_table import profile_table
from itta.explain.resource_counters import count_flops
from itta.nn import BACKBONES
from itta.nn.optimizer import with_prefix
from itta.store.description import DESCRIPTION, WEIGHTS, read_description
from itta.store.model import load
from itta.store.tensors import save_tensors

SMALL = Network("small_cnn", image_size=16, classes=3)
FLAGS = ("--backbone", "small_cnn", "--image-size", "16", "--classes", "3", "--repeats", "1")


@pytest.fixture(scope="module")
def resnet18() -> Any:
    return Network("resnet18", image_size=224, classes=7).untrained("itta")


def flops_of(module: nn.Module, size: int) -> float:
    with torch.no_grad():
        return count_flops(lambda: module(torch.rand(1, 3, size, size)))


@pytest.mark.slow
def test_resnet18_is_that_of_the_paper(resnet18: Any) -> None:
    """1.82 GFLOPs and 11.18 M parameters; with f_Θ 14.94 M, and with f_w, which adaptation reads, 14.95 M."""
    source, itta = adapt(resnet18, "source").frozen(), adapt(resnet18, "itta")
    x = torch.rand(1, 3, 224, 224)
    flops = flops_of(source, 224)
    assert round(flops / 1e9, 2) == 1.82
    # by hand: convolutions and head; an entry of each normalisation; an entry of each colour
    convolutions = 49 * 3 * 64 * 112**2 + 4 * 9 * 64 * 64 * 56**2
    for width, side in ((128, 28), (256, 14), (512, 7)):
        convolutions += side**2 * width * (9 * width // 2 + 3 * 9 * width + width // 2)
    norms = 64 * 112**2 + 4 * 64 * 56**2 + 5 * (128 * 28**2 + 256 * 14**2 + 512 * 7**2)
    assert flops == convolutions + 7 * 512 + norms + 3 * 224**2

    plain = sum(used_parameters(source, x).values())
    assert plain == 11_180_103
    entries = 64 * 56**2 + 128 * 28**2 + 256 * 14**2 + 512 * 7**2
    with_theta = used_parameters(itta.frozen(), x)
    assert sum(with_theta.values()) == plain + 2 * 5 * entries == 14_943_303
    assert sum((with_theta | added_parameters(itta)).values()) == 14_943_303 + 2 * 10 * 512 == 14_953_543
    assert flops_of(itta.frozen(), 224) == flops + 5 * entries


def test_each_mixing_point_comes_up_once() -> None:
    model = SMALL.untrained("itta")
    for n in (1, 8):  # with styles of the bank, and of the batch
        adapter: Any = adapt(model, "itta")
        start = adapter.state_dict()
        seeds = seeds_of_round(adapter, n)
        assert all(torch.equal(v, start[k]) for k, v in adapter.state_dict().items())
        blocks = []
        for seed in seeds:
            adapter.generator.manual_seed(seed)
            blocks.append(adapter.draw_view(n).block)
        assert sorted(blocks) == ["block1", "block2"]


@pytest.mark.parametrize(("every", "batch", "calls"), [(64, 32, 2), (64, 24, 3), (8, 32, 1)])
def test_who_learns_now_and_then_gets_as_many_calls(every: int, batch: int, calls: int, trained_bn: Any) -> None:
    assert len(seeds_of_round(adapt(trained_bn, "note", every=every), batch)) == calls


@pytest.fixture(scope="module")
def trained_bn() -> Any:
    return Network("resnet18", image_size=32, classes=3).untrained("erm")


@pytest.mark.slow
def test_costs_of_a_mode() -> None:
    model = SMALL.untrained("itta")
    modes = {mode.name: mode for mode in default_modes(model)}
    assert list(modes) == ["source", "itta", "itta, last block", "itta, per channel"]
    found = {name: measure_usage(model, mode, batch=8, repeats=2) for name, mode in modes.items()}
    plain = found["source"].inference
    assert plain
    assert found["source"].both is None
    for name, u in found.items():
        if name == "source":
            continue
        assert u.inference
        assert u.adaptation
        assert u.both
        assert u.both.flops > u.adaptation.flops > plain.flops
        assert u.both.flops - u.adaptation.flops < u.inference.flops  # what lies before f_Θ runs once for both
        assert u.both.peak_bytes >= u.adaptation.peak_bytes > u.inference.peak_bytes >= plain.peak_bytes
        assert 0 < u.both.median_ms <= u.both.p95_ms
        assert u.inference.parameters > plain.parameters
    both = {name: u.both for name, u in found.items() if u.both}
    assert both["itta"].parameters > both["itta, last block"].parameters > both["itta, per channel"].parameters
    assert both["itta"].flops > both["itta, last block"].flops
    assert both["itta"].peak_bytes > both["itta, per channel"].peak_bytes


@pytest.mark.slow
def test_flops_and_memory_are_repeatable() -> None:
    model = SMALL.untrained("itta")
    mode = Mode("itta", "itta", {})
    one, two = (measure_usage(model, mode, batch=2, repeats=1) for _ in range(2))
    assert one.both
    assert two.both
    assert (one.both.flops, one.both.peak_bytes) == (two.both.flops, two.both.peak_bytes)


def test_flops_grow_with_the_batch() -> None:
    model, mode = SMALL.untrained("itta"), Mode("source", "source", {})
    one, four = (measure_usage(model, mode, batch, 1).inference for batch in (1, 4))
    assert one
    assert four
    assert four.flops == 4 * one.flops
    assert four.peak_bytes > one.peak_bytes


def test_a_batch_that_is_refused_says_why(trained_bn: Any) -> None:
    usage = measure_usage(trained_bn, Mode("tent", "tent", {}), batch=1, repeats=1)
    assert "at least 2 images" in usage.refused
    assert usage.both is None
    (row,) = profile_table([usage]).rows
    assert list(row) == ["tent", "1", "refused", *"-----"]


@pytest.mark.slow
def test_a_method_without_a_frozen_form_is_compared_with_the_plain_model(trained_bn: Any) -> None:
    usage = measure_usage(trained_bn, Mode("tent", "tent", {}), batch=2, repeats=1)
    plain = measure_usage(trained_bn, Mode("source", "source", {}), batch=2, repeats=1)
    assert usage.inference
    assert plain.inference
    assert usage.inference.flops == plain.inference.flops
    assert usage.adaptation
    assert usage.both
    assert usage.adaptation.flops == usage.both.flops > 1.8 * plain.inference.flops  # weights of convolutions stay


@pytest.mark.slow
def test_a_method_gets_the_training_it_needs() -> None:
    source, ttt = profile_model(SMALL, ["ttt"], [1], repeats=1)
    assert source.inference
    assert ttt.both
    assert ttt.both.parameters > source.inference.parameters  # its rotation branch


def test_json_has_a_row_for_each_mode_and_batch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", *FLAGS, "--batch", "1", "2", "--adapter", "t3a", "source", "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    found = json.loads(printed.out)
    assert "counted once" in found["flops"]
    assert [(r["mode"]["name"], r["batch"]) for r in found["rows"]] == [
        (name, batch) for name in ("source", "t3a") for batch in (1, 2)
    ]
    assert {"parameters", "flops", "median_ms", "p95_ms", "peak_bytes"} == set(found["rows"][2]["both"])
    assert all(math.isfinite(v) for v in found["rows"][2]["adaptation"].values())


def test_a_trained_model_and_a_table(model: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", str(model), "--batch", "2", "--repeats", "1", "--adapter", "t3a"]) == 0
    printed = capsys.readouterr().out
    lines = [line.split("│")[1:4] for line in printed.splitlines() if line.startswith("│")]
    found = [tuple(cell.strip() for cell in line) for line in lines]
    assert found == [("source", "2", "predict"), *(("t3a", "2", phase) for phase in ("predict", "adapt", "both"))]
    assert "counted once" in printed


class OwnERM(ERM):
    """A user's own method."""


@pytest.mark.slow
def test_a_model_of_the_users_own_method_is_measured_once_the_user_names_it(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = f"{OwnERM.__module__}:{OwnERM.__qualname__}"
    description = read_description(model)
    shutil.copytree(model, tmp_path / "own")
    values = {**description.to_json(), "algorithm": own, "hparams": {}}
    trained = load(model)
    tensors = {k: v for k, v in trained.state_dict().items() if k.startswith(("backbone.", "head."))}
    values["weights_sha256"] = save_tensors(tmp_path / "own" / WEIGHTS, with_prefix("model.", tensors), {})
    values["style_bank_domains"] = None
    (tmp_path / "own" / DESCRIPTION).write_text(json.dumps(values))
    flags = [str(tmp_path / "own"), "--batch", "1", "--repeats", "1", "--adapter", "t3a"]
    assert main(["profile", *flags]) == 2
    assert "--algorithm" in capsys.readouterr().err
    assert main(["profile", *flags, "--algorithm", own]) == 0
    assert "t3a" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--backbone", "resnet19"], [*BACKBONES, "Did you mean 'resnet18'"]),
        (["--backbone", "small_cnn", "--adapter", "magic"], ["unknown adapter 'magic'"]),
        (["--backbone", "small_cnn", "--batch", "4", "0"], ["batch size", "at least 1, got 0"]),
        (["--backbone", "small_cnn", "--repeats", "0"], ["repeats", "at least 1, got 0"]),
        (["--classes", "1"], ["classes", "at least 2, got 1"]),
        (["--image-size", "0"], ["image_size", "at least 1, got 0"]),
        (["nowhere"], ["no model directory at nowhere"]),
        (["nowhere", "--classes", "3"], ["give MODEL, or --backbone"]),
        (["--algorithm", "my.module:Method"], ["--algorithm", "give MODEL"]),
        (["--beside-paper", "--classes", "3"], ["--beside-paper", "7 classes"]),
        (["nowhere", "--beside-paper"], ["--beside-paper", "7 classes"]),
    ],
)
def test_mistakes_are_told_in_one_line(flags: list[str], told: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", *flags]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    for word in told:
        assert word in said


@pytest.mark.slow
def test_beside_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--batch", "1", "--repeats", "1", "--adapter", "t3a", "--beside-paper"]
    assert main(["profile", *flags]) == 0
    printed = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if line.startswith("│")]
    assert rows[0][:5] == ["source", "1", "predict", "1.82", "11.18"]
    assert rows[-3:] == [
        ["source, paper", "-", "predict", "1.82", "11.18", "4", "-", "-"],
        ["itta, paper", "-", "predict", "1.83", "14.94", "5", "-", "-"],
        ["itta, paper", "-", "both", "6.12", "14.95", "21", "-", "-"],
    ]
    assert "arXiv:2304.04494" in printed
    assert main(["profile", *flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["paper"]
    assert [(r["mode"], r["phase"], r["gflops"]) for r in found] == [
        ("source", "predict", 1.82), ("itta", "predict", 1.83), ("itta", "both", 6.12),
    ]  # fmt: skip


def test_no_batch_is_a_mistake() -> None:
    with pytest.raises(InputError, match="batch size"):
        profile_model(SMALL, batches=[])
