"""itta+ against a version that keeps every style and every answer, and runs each view on its own."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from itta.adapters import Guard, adapt
from itta.adapters.diagnosis import Diagnosis, Rules
from itta.adapters.itta_plus import ITTAPlus
from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.errors import InputError
from itta.models.source_statistics import collect_confusions

Trained = Callable[..., Algorithm]
Batches = Callable[..., list[Batch]]
SIZES = (12, 5, 1, 9, 12, 3)


@pytest.fixture
def model(trained: Trained, toy_batches: Batches) -> Algorithm:
    model = trained("erm", batch_norm=True, steps=20, lr=1e-2).double()
    model.confusions = collect_confusions(model, [(x.double(), y) for x, y in toy_batches(300, n=30)])
    return model


@pytest.fixture
def stream(toy_batches: Batches) -> list[Tensor]:
    return [toy_batches(400 + i, n=n)[i % 2][0].double() ** 2 for i, n in enumerate(SIZES)]


class Naive:
    """The three answers; what the diagnosis makes of them has an oracle of its own."""

    def __init__(self, model: Algorithm, blocks: tuple[str, ...], memory: int, prior: float, strength: float) -> None:
        self.model, self.blocks, self.memory, self.prior, self.rho = model, blocks, memory, prior, strength
        self.styles: dict[str, list[list[Tensor]]] = {b: [] for b in blocks}  # block -> batch -> image -> [2, C]
        self.temperature = float(model.confusions["temperature"])  # type: ignore[index]
        self.supports: list[tuple[int, float, Tensor]] = []  # class, entropy, direction
        self.scores: list[Tensor] = []
        self.entropies: list[float] = []
        self.support(model.head.weight.detach())

    def weigh(self, batches: list[list[Tensor]]) -> tuple[Tensor, float]:
        """Sum of all entries and of their weights; an entry fades with every image of the batches after its own."""
        total, weight = torch.zeros_like(batches[0][0]), 0.0
        for i, batch in enumerate(batches):
            fading = (1 - 1 / self.memory) ** sum(map(len, batches[i + 1 :]))
            for entry in batch:
                total, weight = total + fading * entry, weight + fading
        return total, weight

    def move(self, block: str, z: Tensor) -> Tensor:
        if block not in self.blocks:
            return z
        bank = self.model.style_bank
        source = torch.stack([bank.mean[block].double().mean(0), bank.std[block].double().mean(0)])
        own = []
        for image in z:
            flat = image.flatten(1)
            mean = flat.mean(1)
            own.append(torch.stack([mean, (((flat - mean[:, None]) ** 2).sum(1) / (flat.shape[1] - 1) + 1e-6).sqrt()]))
        self.styles[block].append(own)
        total, weight = self.weigh(self.styles[block])
        target = (total + self.prior * source) / (weight + self.prior)
        scale = (source[1] / target[1]) ** self.rho
        centre = (1 - self.rho) * target[0] + self.rho * source[0]
        return (z - target[0][:, None, None]) * scale[:, None, None] + centre[:, None, None]

    def support(self, features: Tensor) -> None:
        for z in features:
            p = self.model.head(z).detach().softmax(0)
            self.supports.append((int(p.argmax()), float(-(p * p.log()).sum()), z / z.norm()))

    def ask_prototypes(self, features: Tensor, plain: Tensor) -> Tensor:
        self.support(features)
        prototypes = []
        for label in range(len(self.model.head.weight)):
            own = sorted((s for s in self.supports if s[0] == label), key=lambda s: s[1])[:20]
            total = sum((z for _, _, z in own), torch.zeros_like(features[0]))
            prototypes.append(total / total.norm().clamp(min=1e-12))
        scores = torch.stack([torch.stack([z @ c / z.norm() for c in prototypes]) for z in features])
        self.scores += list(scores)
        self.entropies += [float(-(p * p.log()).sum()) for p in (plain / self.temperature).softmax(1)]
        window, wanted = torch.stack(self.scores[-128:]), sum(self.entropies[-128:]) / len(self.entropies[-128:])
        low, high = 1e-3, 1e4
        for _ in range(80):  # bisection
            k = (low * high) ** 0.5
            p = (k * window).softmax(1)
            low, high = (k, high) if float(-(p * p.log().clamp(min=-1e3)).sum(1).mean()) > wanted else (low, k)
        return (k * scores).softmax(1)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> dict[str, Tensor]:
        z = self.model.backbone(x)
        plain = self.model.head(z)
        restyled = self.model.head(self.model.backbone(x, self.move))
        return {
            "plain": (plain / self.temperature).softmax(1),
            "restyled": (restyled / self.temperature).softmax(1),
            "prototypes": self.ask_prototypes(z, plain),
        }


@pytest.mark.parametrize("blocks", [(), ("block1", "block2")])
@pytest.mark.parametrize("strength", [1.0, 0.4])
@pytest.mark.parametrize("answers", [("plain", "restyled", "prototypes"), ("plain", "restyled"), ("plain",)])
def test_predictions_equal_the_naive_ones(
    blocks: tuple[str, ...], strength: float, answers: tuple[str, ...], model: Algorithm, stream: list[Tensor]
) -> None:
    settings: dict[str, Any] = {"memory": 20, "prior": 3.0, "strength": strength}
    own: dict[str, Any] = {"weight": 0.7, "change": 1e9, "margin": 0.4}
    adapter = adapt(model, "itta+", guard=False, blocks=blocks, answers=answers, **own, **settings)
    naive = Naive(model, blocks or ("block1",), **settings)
    assert model.confusions is not None
    diagnosis = Diagnosis(3, Rules(memory=20, start=3.0), model.confusions)
    for x in stream:
        p = naive(x)
        weights = [0.7 if name == "prototypes" else 1.0 for name in answers]
        mean = sum(w * p[name] for w, name in zip(weights, answers)) / sum(weights)
        far = (p["plain"] - p["restyled"]).abs().sum(1) / 2 if "restyled" in answers else None
        judged = diagnosis(mean.log(), far)
        expected = judged.posterior.softmax(1)
        for row, first, kappa in zip(expected, p["plain"].argmax(1), judged.kappa):
            row[first] *= math.exp(0.4 * (1 - float(kappa)))
        expected /= expected.sum(1, keepdim=True)
        torch.testing.assert_close(adapter(x).softmax(1), expected, rtol=0, atol=1e-4)


def test_a_class_changes_only_for_a_clearly_likelier_one(trained: Trained, toy_batches: Batches) -> None:
    """With a margin, fewer answers differ from the trained model's; each of them differs without it, too."""
    model, counts = trained("erm", steps=3), []  # it has doubts
    for margin in (0.0, 0.01, 1e3):
        equal = {"neighbours": False, "pull": 100.0}  # every frequent answer is held back
        adapter, free = (adapt(model, "itta+", guard=False, margin=m, **equal) for m in (margin, 0.0))
        changed = 0
        for x, _ in toy_batches(400, n=150):
            plain, own, others = (of.argmax(1) for of in (model.predict(x), adapter(x), free(x)))
            assert torch.equal(own[own != plain], others[own != plain])
            changed += int((own != plain).sum())
        counts.append(changed)
    assert counts[0] > counts[1] > counts[2] == 0


def test_one_at_a_time_learns_what_all_at_once_does(model: Algorithm, stream: list[Tensor]) -> None:
    images = torch.cat(stream)
    thetas = []
    for size in (1, 4, len(images)):
        adapter = adapt(model, "itta+", guard=False, memory=10**9)
        assert isinstance(adapter, ITTAPlus)
        for x in images.split(size):
            adapter(x)
        thetas.append(torch.stack(adapter.theta("block1")))
    torch.testing.assert_close(thetas[0], thetas[2], rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(thetas[1], thetas[2], rtol=1e-7, atol=1e-7)
    assert (thetas[2][0] - 1).abs().max() > 0.05


def test_the_trained_model_is_asked_once(model: Algorithm, stream: list[Tensor]) -> None:
    """The guard takes the trained model's answer from the adapter, and it is the right one."""
    adapter = adapt(model, "itta+")
    assert isinstance(adapter, Guard)
    passes: list[int] = []
    for m in (adapter.model, adapter.inner.model):
        m.backbone.last_block.register_forward_hook(lambda module, args, out: passes.append(len(out)))
    for x in stream:
        adapter(x)
        assert adapter.inner.reference is not None
        torch.testing.assert_close(adapter.inner.reference, model.predict(x).detach(), rtol=0, atol=1e-12)
        assert passes[-1] == 2 * len(x)
    assert len(passes) == len(stream)


def test_before_the_first_image_it_is_the_trained_model(model: Algorithm, stream: list[Tensor]) -> None:
    adapter = adapt(model, "itta+", guard=False)
    assert torch.equal(adapter.frozen()(stream[0]), model.predict(stream[0]))


def test_a_model_that_carries_nothing_is_adapted_with_what_is_left(model: Algorithm, stream: list[Tensor]) -> None:
    model.style_bank = model.confusions = None
    model.head = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)).double()
    adapter = adapt(model, "itta+", guard=False)
    assert isinstance(adapter, ITTAPlus)
    for x in stream:
        torch.testing.assert_close(adapter.look(x).plain, model.predict(x))
        assert torch.isfinite(adapter(x)).all()
    assert set(adapter.diagnosis()["left out"]) == {"restyled", "prototypes", "confusions"}
    assert torch.isfinite(adapter.frozen()(stream[0])).all()


def test_the_diagnosis_is_plain_data(model: Algorithm, stream: list[Tensor]) -> None:
    adapter = adapt(model, "itta+", guard=False)
    assert isinstance(adapter, ITTAPlus)
    for x in stream:
        adapter(x)
    found = adapter.diagnosis()
    assert found["images"] == sum(SIZES)
    assert list(found["changed"]) == ["restyled", "prototypes", "frequencies", "neighbours", "too close"]
    assert sum(found["prior"].values()) == pytest.approx(1)
    assert [entry["images"] for entry in found["history"]] == [12, 17, 18, 27, 39, 42]
    assert found["history"][-1]["rho"] == found["rho"]
    assert found["left out"] == {}
    assert found["new domains"] == []


def test_a_new_domain_is_noticed_and_the_old_one_forgotten(model: Algorithm, toy_batches: Batches) -> None:
    """After the change, answers are those of an adapter that never saw the domain before."""
    old, new = (torch.cat([toy_batches(seed, n=16)[0][0].double() for seed in range(s, s + 6)]) for s in (10, 30))
    new = 1 - 0.2 * new
    adapter, fresh = (adapt(model, "itta+", guard=False, neighbours=False) for _ in range(2))
    guarded = adapt(model, "itta+", guard=True, neighbours=False)
    assert isinstance(adapter, ITTAPlus)
    assert isinstance(guarded, Guard)
    for x in old.split(16):
        torch.testing.assert_close(guarded(x), adapter(x))
    assert adapter.diagnosis()["new domains"] == []
    for x in new.split(16):
        answer = adapter(x)
        torch.testing.assert_close(answer, fresh(x), rtol=0, atol=1e-3)
        torch.testing.assert_close(guarded(x), answer)
    assert adapter.diagnosis()["new domains"] == [96]
    assert not guarded.log
    # lengths of features, not of the weights of the prototypes; at the change, before and after the second run
    assert guarded.means["norm"] == pytest.approx(1, abs=0.02)


def test_the_same_domain_is_never_new(model: Algorithm, toy_batches: Batches) -> None:
    adapter = adapt(model, "itta+", guard=False)
    assert isinstance(adapter, ITTAPlus)
    for seed in range(30):
        adapter(toy_batches(seed, n=8)[1][0].double())
    assert adapter.diagnosis()["new domains"] == []


def test_labels_are_never_seen(model: Algorithm, stream: list[Tensor]) -> None:
    """Answers depend on images alone: there is no way in for a label."""
    one, other = adapt(model, "itta+"), adapt(model, "itta+")
    assert all(torch.equal(one(x), other(x.clone())) for x in stream)


def test_what_cannot_work_is_refused(model: Algorithm) -> None:
    with pytest.raises(InputError, match=r"can restyle after block1 and block2, not after block4"):
        adapt(model, "itta+", blocks=("block4",))
    with pytest.raises(InputError, match="memory must be at least 1, got 0"):
        adapt(model, "itta+", memory=0)
    with pytest.raises(InputError, match="margin must be at least 0, got -1"):
        adapt(model, "itta+", margin=-1.0)
    with pytest.raises(InputError, match="answers must name plain"):
        adapt(model, "itta+", answers=("restyled",))
    with pytest.raises(InputError, match=r"high must be above low \(3.0\), got 2"):
        adapt(model, "itta+", high=2.0, low=3.0)
    with pytest.raises(InputError, match="stays must name chances"):
        adapt(model, "itta+", stays=(1.0,))
