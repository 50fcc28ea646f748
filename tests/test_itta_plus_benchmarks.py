"""What the benchmarks of itta+ replay is what the real methods answer; the code has the constants that were chosen."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import guard_limits, itta_plus_bounds, itta_plus_grid, itta_plus_selection
from benchmarks.replay import Variant, as_images, features_model, judge, keep, look, run
from itta.adapters import Guard, adapt, find_adapter
from itta.adapters.diagnosis import Rules
from itta.adapters.frequencies import ESTIMATE_COUNTS_AS, Frequencies
from itta.adapters.itta_plus import ITTAPlus
from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.hparams import default
from itta.models.source_statistics import collect_confusions

pytestmark = pytest.mark.slow

Trained = Callable[..., Algorithm]
Batches = Callable[..., list[Batch]]
RECORDS = Path(__file__).parent.parent / "docs" / "results" / "records"


class ToyImages:
    """A batch as a domain."""

    names, groups = (), None

    def __init__(self, pixels: torch.Tensor, labels: torch.Tensor) -> None:
        self.pixels, self.labels = (pixels * 255).byte(), labels.numpy()

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, indices: np.ndarray) -> torch.Tensor:
        return self.pixels[torch.as_tensor(indices)]


@pytest.fixture
def model(trained: Trained, toy_batches: Batches) -> Algorithm:
    model = trained("erm", steps=20, lr=1e-2, batch_norm=True)
    model.confusions = collect_confusions(model, toy_batches(300, n=30))
    return model


@pytest.fixture
def images(toy_batches: Batches) -> ToyImages:
    return ToyImages(*toy_batches(500, n=90)[1])


@pytest.mark.parametrize(
    "variant",
    [Variant(), Variant(Rules(ordered=False), weight=1.0, margin=0.0, temperature=False)],
    ids=("chosen", "other"),
)
@pytest.mark.parametrize("batch", [1, 16])
def test_the_replay_is_what_itta_plus_answers(
    batch: int, variant: Variant, model: Algorithm, images: ToyImages
) -> None:
    order = np.argsort(images.labels, kind="stable")
    images.pixels[order[60:]] = 255 - images.pixels[order[60:]] // 5  # a new domain
    kept = keep(model, look(model, images, order), order, batch)
    assert model.confusions is not None
    replayed = judge(kept, variant, model.confusions, batch)
    settings = {"weight": variant.weight, "margin": variant.margin, "temperature": variant.temperature}
    adapter = adapt(model, "itta+", guard=False, ordered=variant.rules.ordered, **settings)
    assert isinstance(adapter, ITTAPlus)
    real = torch.cat([adapter(x) for x in (images.read(order).float() / 255).split(batch)])
    assert adapter.diagnosis()["new domains"] == kept["new domains"].tolist() != []
    torch.testing.assert_close(replayed.softmax(1), real.softmax(1), rtol=0, atol=1e-4)
    assert torch.equal(replayed.argmax(1), real.argmax(1))


@pytest.mark.parametrize("method", ["t3a", "lame"])
@pytest.mark.parametrize("guard", [True, False])
def test_the_replay_is_what_the_others_answer(method: str, guard: bool, model: Algorithm, images: ToyImages) -> None:
    order = np.arange(len(images))
    x = images.read(order).float() / 255
    with torch.no_grad():
        features = model.features(x)
    replayed = run(adapt(features_model(model), method, guard=guard), features, 16)
    adapter = adapt(model, method, guard=guard)
    real = torch.cat([adapter(part) for part in x.split(16)])
    torch.testing.assert_close(replayed, real, rtol=0, atol=1e-4)
    assert as_images(features).shape == (90, 3, 6, 1)


def test_the_code_has_the_constants_that_the_selection_printed() -> None:
    chosen = json.loads((RECORDS / "itta_plus_selection.json").read_text())
    assert list(chosen) == [*itta_plus_selection.GRID, "margin", *itta_plus_selection.EARLIER, "change"]
    rules = {name: getattr(Rules(), name) for name in chosen if hasattr(Rules(), name)}
    assert set(chosen) - set(rules) == {"weight", "margin", "change"}
    hp = default(find_adapter("itta+").Hparams)
    assert json.loads(json.dumps({name: getattr(hp, name) for name in chosen})) == chosen
    assert json.loads(json.dumps(rules)) == {name: chosen[name] for name in rules}


def test_the_selection_counts_a_lost_point_twenty_times() -> None:
    """Its record has every setting that was tried; the chosen one follows from the rule."""
    chosen = json.loads((RECORDS / "itta_plus_selection.json").read_text())
    with (RECORDS / "itta_plus_selection.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    best = max(lines, key=lambda line: float(line["mean"]) - 20 * float(line["lost"]))
    assert {name: best[name] for name in ("weight", "pull", "usual", "margin")} == {
        name: str(chosen[name]) for name in ("weight", "pull", "usual", "margin")
    }
    sizes = [len(values) for values in itta_plus_selection.GRID.values()]
    assert len(lines) == np.prod(sizes) * len(itta_plus_selection.MARGINS)


def test_the_guard_has_the_limits_that_the_command_printed() -> None:
    with (RECORDS / "guard_limits.csv").open(newline="") as file:
        rows = [guard_limits.Row(**{**line, "gain": float(line["gain"])}) for line in csv.DictReader(file)]
    limits, hp = guard_limits.SETTINGS[guard_limits.choose(rows)], default(Guard.Hparams)
    assert limits is not None
    assert {name: getattr(hp, name) for name in limits} == limits


def test_every_variant_of_the_ablation_is_another() -> None:
    variants = itta_plus_grid.variants()
    assert len({str(v) for v in variants.values()}) >= len(variants) - 2  # chosen values are there twice


@pytest.fixture
def evidence(model: Algorithm, images: ToyImages) -> list[itta_plus_selection.Evidence]:
    """One stream of each kind; unequal classes for Zipf's law."""
    found, classes = [], np.bincount(images.labels)
    for kind in (*itta_plus_selection.ONE, *itta_plus_selection.SEVERAL):
        order = np.random.RandomState(0).permutation(len(images))
        if kind.startswith("zipf"):
            order = order[images.labels[order] <= np.argmax(classes)]
        kept = keep(model, look(model, images, order), order, 16)
        noise = 3 * torch.randn(kept["plain"].shape, generator=torch.Generator().manual_seed(0))
        kept |= {name: kept[name].clamp(-1, 1) + noise for name in kept if name == "plain" or name.endswith("answer")}
        found.append(itta_plus_selection.Evidence("toys-a+b-erm-0@c", kind, kept, dict(model.confusions or {}), 0.0))
    return found


def test_the_bounds_have_a_row_for_each_margin_and_each_thing_to_know(
    evidence: list[itta_plus_selection.Evidence],
) -> None:
    rows = {row.setting: row for row in itta_plus_bounds.source_rows(evidence)}
    first = evidence[0]
    right = (judge(first.kept, Variant(), first.known).argmax(1) == first.kept["labels"]).double().mean()
    before = (first.kept["plain"].argmax(1) == first.kept["labels"]).double().mean()
    assert rows["itta+"].iid == pytest.approx(100 * float(right - before), abs=0.01)
    assert len(rows) == len(itta_plus_bounds.MARGINS) + len(itta_plus_bounds.COUNTED) + 2 + 2 * 4
    assert rows["true class frequencies"].zipf2 > rows["itta+"].zipf2
    assert rows["true confusions"][2:] != rows["itta+"][2:] != rows["margin 0.7"][2:]
    targets = [row.setting for row in itta_plus_bounds.target_rows(evidence)]
    assert targets == [name for name in rows if name in targets]
    assert targets[0] == "itta+"
    assert len(targets) == 5


def test_counted_images_are_drawn_from_the_stream_and_always_the_same(
    evidence: list[itta_plus_selection.Evidence],
) -> None:
    labels = evidence[0].kept["labels"].numpy()
    counted = itta_plus_bounds.count(20)(evidence[0], labels)
    assert isinstance(counted, Frequencies)
    assert counted.counted.sum() == 20
    again = itta_plus_bounds.count(20)(evidence[0], labels)
    assert isinstance(again, Frequencies)
    np.testing.assert_array_equal(counted.counted, again.counted)
    assert itta_plus_bounds.cell_of(evidence[0]) == "toys-a+b-erm@c"


def test_the_estimate_counts_as_much_as_the_record_chose() -> None:
    with (RECORDS / "itta_plus_bounds.csv").open(newline="") as file:
        names = itta_plus_bounds.Row._fields[2:]
        lines = [{**line, **{name: float(line[name]) for name in names}} for line in csv.DictReader(file)]
    rows = [itta_plus_bounds.Row(**line) for line in lines]  # type: ignore[arg-type]
    assert itta_plus_bounds.choose(rows) == ESTIMATE_COUNTS_AS
