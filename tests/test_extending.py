"""One of each thing that can be added: a definition and one line in a table, as CONTRIBUTING shows."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import itta
from itta.adapters import ADAPTERS, Adapter, adapt
from itta.adapters.watches import WATCHES, Trip, Watched
from itta.algorithms import ALGORITHMS, Algorithm
from itta.algorithms.base import Batch, Logs
from itta.cli import VERBS, main
from itta.data import DATASETS, DataRequest, NamedDataset, load_dataset
from itta.data.dataset import DomainDataset
from itta.data.streams import CLASS_ORDERS, DOMAIN_ORDERS, draw_order
from itta.estimators import ESTIMATORS, estimate_from
from itta.estimators.base import Estimator, Evidence
from itta.estimators.statistics import STATISTICS, measure_answers
from itta.metrics.selection import SELECTIONS, ChosenCheckpoint, Selection
from itta.models.stand_ins import StandIns
from itta.nn import BACKBONES, Backbone, BackboneEntry
from itta.records import Record
from itta.report.layouts import TABLES, Layout, Row, leave_one_out
from itta.run.job import Ending, Job, perform
from itta.sweep.engines import ENGINES, EngineOptions, run_jobs

TINY = ("--weights", "none", "--image-size", "16", "--steps", "1", "--set", "batch_size=4", "--no-page", "--json")


class SmoothERM(Algorithm):
    """min CE(f_φ(f_θ(x)), (1 − s)·y + s/C), s = 0.1."""

    name, paper = "smooth_erm", "Szegedy et al., CVPR 2016"

    def objective(self, batches: Sequence[Batch]) -> tuple[Tensor, Logs]:
        x, y = self.gather(batches)
        loss = F.cross_entropy(self.predict(x), y, label_smoothing=0.1)
        return loss, {"loss": loss.item()}


class Sharpen(Adapter):
    """Predict with logits times two."""

    name, paper, predicts = "sharpen", "none: an example", "after"

    def forward(self, x: Tensor) -> Tensor:
        x = self.receive(x)
        return 2 * self.model.predict(x)


class TwoBlocks(Backbone):
    """Two convolutions."""

    block_names = ("block1", "block2")
    dim = 8

    def __init__(self) -> None:
        super().__init__()
        self.block1 = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU())
        self.block2 = nn.Sequential(nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU())

    def stem(self, x: Tensor) -> Tensor:
        return x


@pytest.fixture
def own_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package of the user's own, which needs no line in any table."""
    module = ModuleType("own_methods")
    for cls in (SmoothERM, Sharpen, TwoBlocks):
        copy = type(cls.__name__, (cls,), {"__module__": "own_methods"})
        setattr(module, cls.__name__, copy)
    monkeypatch.setitem(sys.modules, "own_methods", module)
    return module


def trained_with(photos: Path, out: Path, *flags: str) -> dict[str, Any]:
    assert main(["train", str(photos), "--target", "night", "--out", str(out), *TINY, *flags]) == 0
    return json.loads((out / "model.json").read_text())


def test_a_method_an_adapter_and_a_backbone(photos: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(ALGORITHMS, "smooth_erm", SmoothERM)
    monkeypatch.setitem(ADAPTERS, "sharpen", Sharpen)
    monkeypatch.setitem(BACKBONES, "two_blocks", BackboneEntry(TwoBlocks, "two convolutions"))
    about = trained_with(photos, tmp_path / "run", "--algorithm", "smooth_erm", "--backbone", "two_blocks")
    assert (about["backbone"], about["classes"]) == ("two_blocks", ["across", "down"])
    assert main(["list", "--json"]) == 0
    assert "two convolutions" in capsys.readouterr().out


def test_own_classes_need_no_table(photos: Path, tmp_path: Path, own_module, capsys) -> None:
    flags = ("--algorithm", "own_methods:SmoothERM", "--backbone", "own_methods:TwoBlocks")
    trained_with(photos, tmp_path / "run", *flags)
    words = ["adapt", str(tmp_path / "run"), str(photos / "night"), "--adapter", "own_methods:Sharpen", "--json"]
    capsys.readouterr()
    assert main(words) == 2  # a file never makes itta import code
    assert "--algorithm package.module:Class" in capsys.readouterr().err
    assert main([*words, *flags]) == 0
    assert json.loads(capsys.readouterr().out)["adapter"] == "sharpen"
    model = itta.load(tmp_path / "run", algorithm=own_module.SmoothERM, backbone=own_module.TwoBlocks)
    x = torch.rand(2, 3, 16, 16)
    assert torch.allclose(adapt(model, own_module.Sharpen)(x), 2 * model(x).detach())


def test_a_data_set(photos: Path, tmp_path: Path, monkeypatch, run_itta) -> None:
    def load_clocks(request: DataRequest) -> DomainDataset:
        return replace(load_dataset(photos, image_size=request.image_size), name="clocks", path=None, fingerprint="")

    monkeypatch.setitem(DATASETS, "clocks", NamedDataset("clocks", ("dawn", "night", "noon"), load_clocks, False))
    words = ("clocks", "--backbone", "small_cnn", *TINY)
    printed = json.loads(
        run_itta("train", *words, "--target", "night", "--out", tmp_path / "run", "--algorithm", "erm")
    )
    assert printed["trial"]["dataset"] == "clocks"
    assert "clocks" in run_itta("list", "datasets")
    assert json.loads(run_itta("adapt", tmp_path / "run", "clocks", "--adapter", "t3a", "--json"))["target"] == "night"


def test_a_selection_rule_and_a_table(made: Callable[..., list[Record]], tmp_path: Path, monkeypatch, run_itta) -> None:
    from itta.records import write_all

    def worst_step(own: Sequence[Record], pairs: Sequence[Record], target: str) -> ChosenCheckpoint | None:
        return min(
            (ChosenCheckpoint(r, r.accuracy[target]["in"]) for r in own), key=lambda c: c.validation, default=None
        )

    monkeypatch.setitem(SELECTIONS, "worst", Selection(worst_step, "the worst checkpoint"))
    sketch = tuple(c for c in leave_one_out("PACS", ("A", "C", "P", "S")) if c.target == "sketch")
    monkeypatch.setitem(TABLES, "sketch-only", Layout("Only sketches", (Row("Mine", "erm"),), sketch))
    write_all(tmp_path / "records.jsonl", [*made("erm", accuracy=0.7, step=10), *made("erm", accuracy=0.4, step=20)])
    text = run_itta("report", tmp_path / "records.jsonl", "--selection", "worst", "--table", "sketch-only")
    assert "Only sketches" in text
    assert "the worst checkpoint" in text
    assert "40.0" in text
    assert "70.0" not in text


def test_a_kind_of_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CLASS_ORDERS, "backwards", lambda y, concentration, rng: np.argsort(-y, kind="stable"))
    monkeypatch.setitem(DOMAIN_ORDERS, "last first", lambda sizes, rng: np.repeat(np.arange(len(sizes)), sizes)[::-1])
    order = draw_order({"a": np.array([0, 1, 2]), "b": np.array([1, 0])}, "backwards", "last first")
    assert order.domain.tolist() == [1, 1, 0, 0, 0]
    assert order.index.tolist() == [0, 1, 2, 1, 0]


def test_a_watch_of_the_guard(trained: Callable[..., Algorithm], monkeypatch: pytest.MonkeyPatch) -> None:
    def never_content(seen: Watched) -> Trip | None:
        return Trip("never content", 1.0, 0.0)

    monkeypatch.setitem(WATCHES, "never content", never_content)
    guard: Any = adapt(trained("erm"), "t3a", guard=True)
    guard(torch.rand(4, 3, 16, 16))
    assert guard.log[-1].watch == "never content"


def test_an_estimator_and_a_statistic(monkeypatch: pytest.MonkeyPatch, run_itta) -> None:
    class Optimist(Estimator):
        """Everything is right."""

        name, paper = "optimist", "none: an example"

        def __call__(self, evidence: Evidence, known: StandIns | None) -> float:
            return 1.0

    monkeypatch.setitem(ESTIMATORS, "optimist", Optimist)
    monkeypatch.setitem(STATISTICS, "images", lambda evidence, threshold: float(len(evidence)))
    evidence = Evidence(torch.eye(3), torch.arange(3))
    assert estimate_from(evidence, None).single == {"confidence": 1.0, "optimist": 1.0}
    assert measure_answers(evidence, 0.0, 3, ["images"]) == {"images": 3.0}
    assert "optimist" in run_itta("list", "estimators")


class InThisProcess:
    """An engine without processes: each job is done when it is started."""

    slots = 1

    def __init__(self, options: EngineOptions, report: object) -> None:
        self.names: list[str] = []

    def start(self, name: str, job: Job) -> None:
        perform(job)
        self.names.append(name)

    def ended(self) -> list[tuple[str, Ending]]:
        done, self.names = self.names, []
        return [(name, Ending("done")) for name in done]

    def close(self) -> None:
        """Nothing is left running."""


def test_an_engine(make_job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("own_engines")
    module.InThisProcess = InThisProcess  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_engines", module)
    monkeypatch.setitem(ENGINES, "here", "own_engines:InThisProcess")
    assert run_jobs({"run": make_job(tmp_path / "run", ())}, "here") == {}
    assert (tmp_path / "run" / "model.json").is_file()


def test_a_verb(monkeypatch: pytest.MonkeyPatch, run_itta) -> None:
    def greet(name: str = "you", loudly: bool = False) -> None:
        """Greet somebody.

        Args:
            name: Who it is.
            loudly: Greet in capitals.
        """
        text = f"hello {name}"
        print(text.upper() if loudly else text)

    monkeypatch.setitem(VERBS, "greet", greet)
    assert run_itta("greet", "--name", "ada", "--loudly") == "HELLO ADA\n"
    with pytest.raises(SystemExit):
        main(["greet", "--help"])
