"""The guard: healthy adapters are left alone, sick ones are taken back, and a prediction comes whatever happens."""

import math
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from itta.adapters import ADAPTERS, Adapter, Guard, adapt
from itta.adapters.source import Source
from itta.adapters.watches import WATCHES, Means, excess_cost
from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.errors import InputError
from itta.hparams import default
from tests.fixtures.toy import FEW_VIEWS, mark_slow

Trained = Callable[..., Algorithm]
Batches = Callable[..., list[Batch]]


class Sick(Source):
    """The trained model, until it falls ill: then ``illness`` spoils its logits, and a reset cures it."""

    def __init__(self, trained: Algorithm, illness: Callable[[Tensor], Tensor], after: int) -> None:
        super().__init__(trained, default(Source.Hparams))
        self.illness, self.after, self.seen = illness, after, 0
        self.calls = 0  # in all, whatever is undone

    def forward(self, x: Tensor) -> Tensor:
        self.seen, self.calls = self.seen + 1, self.calls + 1
        logits = super().forward(x)
        return self.illness(logits) if self.seen > self.after else logits

    def reset(self) -> None:
        self.seen = 0

    def state(self) -> dict[str, Tensor]:
        return {"seen": torch.tensor(self.seen)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.seen = int(state["seen"])


def nan(logits: Tensor) -> Tensor:
    return logits * float("nan")


FIRST = torch.tensor([3.0, 0.0, 0.0])
ILLNESSES: dict[str, Callable[[Tensor], Tensor]] = {
    "finite": nan,
    "entropy": lambda logits: 1e4 * logits,
    "class balance": lambda logits: logits * 1e-6 + FIRST,
    "cost": lambda logits: logits.roll(1, 1),
}


@pytest.fixture
def stream(toy_batches: Batches) -> list[Tensor]:
    return [toy_batches(300 + i, n=12)[1][0] for i in range(40)]


def guarded(trained: Algorithm, inner: Adapter, **settings: object) -> Guard:
    """Without probation, unless it is set."""
    return Guard(trained, inner, default(Guard.Hparams, **({"probation": 0} | settings)))


def source(model: Algorithm, stream: list[Tensor]) -> list[Tensor]:
    """The trained model's answers, by a fast copy, as the guard's own trained model is one."""
    trained = adapt(model, "source")
    return [trained(x) for x in stream]


@pytest.mark.slow
def test_a_healthy_adapter_is_left_alone(trained: Trained, stream: list[Tensor]) -> None:
    model = trained("erm", steps=40)
    guard = adapt(model, "itta", guard={"probation": 0}, objective="plain")
    plain = adapt(model, "itta", objective="plain")
    for x in stream:
        assert torch.equal(guard(x), plain(x))
    assert isinstance(guard, Guard)
    assert guard.counts == {}
    assert guard.describe()["interventions"] == {}
    assert (guard.name, guard.predicts, guard.needs.changes) == ("guarded itta", "after", "added blocks Θ")


@pytest.mark.parametrize("watch", ILLNESSES)
@pytest.mark.slow
def test_each_watch_trips(watch: str, trained: Trained, stream: list[Tensor]) -> None:
    """Ill from the 16th batch on: never again a sick answer once seen, the rest are the trained model's."""
    model = trained("erm", steps=40)
    alone = {"budget": 1e9} if watch == "class balance" else {}  # or what it costs would be the first to trip
    guard = guarded(model, Sick(model, ILLNESSES[watch], after=15), memory=24, **alone)
    got, expected = [guard(x) for x in stream], source(model, stream)
    assert watch in guard.counts
    assert all(torch.equal(a, b) for a, b in zip(got[:15], expected))
    wrong = sum(not torch.equal(a, b) for a, b in zip(got[15:], expected[15:]))
    assert wrong <= 8
    actions = [i.action for i in guard.log]
    assert actions[0] == "rolled back"
    assert all(torch.isfinite(logits).all() for logits in got)


def test_feature_norm_trips(trained: Trained, stream: list[Tensor]) -> None:
    model = trained("erm", steps=40)
    inner = adapt(model, "itta", objective="plain", lr=0.5, optimizer="sgd")
    guard = guarded(model, inner)
    with torch.no_grad():
        for p in inner.moving.values():
            p.mul_(3)  # features grow without end
    got = guard(stream[0])
    assert guard.counts == {"feature norm": 1}
    assert torch.equal(got, source(model, stream)[0])
    assert all(torch.equal(p, inner.start[k]) for k, p in inner.moving.items())


def test_a_loss_that_rises_trips() -> None:
    means = Means(memory=10)
    logits = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    for _ in range(50):
        means.add(logits, logits, loss=1.0, norm=1.0)
    assert means["loss"] == pytest.approx(means.long_loss) == pytest.approx(1.0)
    for _ in range(2):
        means.add(logits, logits, loss=100.0, norm=1.0)
    assert means["loss"] > 5 * means.long_loss > 5


def test_rolls_back_first_then_resets_and_rests(trained: Trained, stream: list[Tensor]) -> None:
    """Ill from its fourth batch of 12 on: a trial, in which it fails, then a rest and a trial, in which it fails, …"""
    model = trained("erm", steps=40)
    inner = Sick(model, nan, after=3)
    guard = guarded(model, inner, trial=24, snapshot_every=12, memory=12)
    asked = []
    for x in stream[:30]:
        before = inner.calls
        assert torch.equal(guard(x), source(model, [x])[0])
        asked.append(inner.calls > before)
    assert [(i.image, i.action) for i in guard.log] == [
        (36, "rolled back"),
        (48, "reset"),
        (144, "reset"),
        (288, "reset"),
    ]
    assert [i for i, was in enumerate(asked, 1) if not was] == [6, 7, 8, 9, *range(14, 22), *range(26, 31)]


def test_after_a_trial_the_answers_count_again(trained: Trained, stream: list[Tensor]) -> None:
    model = trained("erm", steps=40)

    class Hiccup(Sick):
        """Ill for one batch only, whatever is done about it; and otherwise not quite the trained model."""

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + (nan(x[0, 0, :3, 0]) if self.calls == 5 else 0.001)

    guard = guarded(model, Hiccup(model, nan, after=1000), trial=24)
    same = [torch.equal(guard(x), expected) for x, expected in zip(stream, source(model, stream))]
    assert [i for i, is_source in enumerate(same[:20], 1) if is_source] == [5, 6, 7]
    assert [i.action for i in guard.log] == ["rolled back"]


def test_a_harmed_adapter_is_no_snapshot(trained: Trained, stream: list[Tensor]) -> None:
    """What already costs answers, though not yet enough to trip, is not what one would go back to."""
    model = trained("erm", steps=40)
    guard = guarded(model, Sick(model, ILLNESSES["cost"], after=4), snapshot_every=12, memory=12, budget=1e9)
    for x in stream[:4]:
        guard(x)
    healthy = {k: v.clone() for k, v in guard.snapshot.items()}
    for x in stream[4:8]:
        guard(x)
    assert healthy["seen"] == 4
    assert guard.snapshot["seen"] == 4
    assert guard.snapshot_at == 48


@pytest.mark.parametrize("batch", [1, 5, 20])
def test_the_debt_is_what_the_trained_model_would_lose(batch: int) -> None:
    """The formula, image by image in plain Python; how the images are divided plays no role where debts only grow."""
    generator = torch.Generator().manual_seed(0)
    logits, reference, referee = (3 * torch.randn(20, 4, generator=generator) for _ in range(3))
    expected = 0.0
    for q, own, other in zip(referee.softmax(1).tolist(), logits.tolist(), reference.tolist()):
        expected += q[other.index(max(other))] - q[own.index(max(own))] - 0.15 * (1 - max(q))
    parts = zip(*(of.split(batch) for of in (logits, reference, referee)))
    assert sum(excess_cost(a, b, c, 0.15) for a, b, c in parts) == pytest.approx(expected, abs=1e-5)
    assert excess_cost(reference, reference, referee, 0.15) < 0


def test_the_log_counts_the_images_before_the_batch(trained: Trained, stream: list[Tensor]) -> None:
    """Those with broken pixels too: they had their place in the stream."""
    model = trained("erm", steps=40)
    guard = guarded(model, Sick(model, nan, after=2))
    broken = stream[1].clone()
    broken[4] = float("nan")
    for x in (stream[0], broken, stream[2][:5], stream[3]):
        guard(x)
    assert [(i.image, i.watch) for i in guard.log] == [(12, "non-finite image"), (24, "finite")]
    guard.reset()
    assert not guard.log


def test_broken_images_and_small_batches_still_get_an_answer(trained: Trained, stream: list[Tensor]) -> None:
    model = trained("erm", steps=40, batch_norm=True)
    guard = adapt(model, "tent", guard=True)
    x = stream[0].clone()
    x[3], x[5] = float("nan"), float("inf")
    logits = guard(x)
    assert (logits[[3, 5]] == 0).all()
    assert torch.isfinite(logits).all()
    assert (logits[[0, 1, 2, 4]] != 0).any(1).all()
    with torch.no_grad():
        assert torch.equal(guard(stream[1][:1]), source(model, [stream[1][:1]])[0])
    assert guard.counts == {"non-finite image": 1, "refused batch": 1}
    assert (guard(torch.full_like(x, float("nan"))) == 0).all()
    assert torch.isfinite(guard(torch.full_like(x, 0.5))).all()


def test_images_too_bright_for_the_network_still_get_an_answer(trained: Trained, stream: list[Tensor]) -> None:
    """Finite, but what the network makes of them is not; it leaves no trace in what the adapter learns."""
    model = trained("erm", steps=40)
    guard = adapt(model, "t3a", guard={"trial": 12, "probation": 0})
    bright = stream[0].clone()
    bright[2] = 1e38
    assert not torch.isfinite(source(model, [bright])[0]).all()
    guard(stream[1])
    logits = guard(bright)
    assert (logits[2] == 0).all()
    assert torch.equal(logits[3:], source(model, [bright])[0][3:])
    assert guard.counts == {"finite": 1}
    guard(stream[2])  # on trial
    bare = adapt(model, "t3a")
    bare(stream[2])
    assert torch.equal(guard(stream[3]), bare(stream[3]))


@pytest.mark.parametrize("name", mark_slow([n for n in ADAPTERS if n != "source"], ("memo", "mt3", "ttt")))
@pytest.mark.slow
def test_the_state_goes_on_elsewhere(name: str, trained_for: Trained, stream: list[Tensor]) -> None:
    model, settings = trained_for(name), {"guard": {"memory": 24}, **FEW_VIEWS.get(name, {})}
    whole, other = adapt(model, name, **settings), adapt(model, name, **settings)
    for x in stream[:4]:
        whole(x)
    other.load_state_dict(whole.state_dict())
    assert all(torch.equal(whole(x), other(x)) for x in stream[4:7])
    whole.reset()
    fresh = adapt(model, name, **settings)
    assert all(torch.equal(whole(x), fresh(x)) for x in stream[:3])


@pytest.mark.slow
@pytest.mark.parametrize("batches", range(3, 12))
def test_the_state_goes_on_in_debt_on_trial_and_at_rest(batches: int, trained: Trained, stream: list[Tensor]) -> None:
    model = trained("erm", steps=40, batch_norm=True)
    settings = {"trial": 24, "memory": 12, "snapshot_every": 12, "budget": 8.0}
    whole, other = (adapt(model, "tent", lr=0.3, guard=settings) for _ in range(2))
    assert isinstance(whole, Guard)
    for x in stream[:batches]:
        whole(x)
    saved = whole.state_dict()
    kept = {k: v.clone() for k, v in saved.items()}
    other.load_state_dict(saved)
    assert all(torch.equal(whole(x), other(x)) for x in stream[batches:25])
    assert {"rolled back", "reset"} <= {i.action for i in whole.log}
    first, second = whole.state_dict(), other.state_dict()
    assert all(torch.equal(v, second[k]) for k, v in first.items())
    assert all(torch.equal(v, saved[k]) for k, v in kept.items())  # neither has touched what was saved


@pytest.mark.slow
def test_a_runaway_is_kept_near_the_source(trained: Trained, toy_batches: Batches) -> None:
    """TENT at a ruinous learning rate, one class after another."""
    model = trained("erm", steps=60, batch_norm=True, lr=3e-3)
    batches = [toy_batches(500 + i, n=30)[1] for i in range(20)]
    x, y = torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])
    order = y.argsort(stable=True)

    def accuracy(adapter: Adapter) -> float:
        right = [adapter(x[rows]).argmax(1) == y[rows] for rows in order.split(20)]
        return float(torch.cat(right).float().mean())

    plain = accuracy(adapt(model, "source"))
    ruined = accuracy(adapt(model, "tent", lr=1.0))
    kept = accuracy(adapt(model, "tent", lr=1.0, guard=True))
    assert ruined < plain - 0.2
    assert kept > plain - 0.02


@pytest.mark.slow
def test_a_long_stream_leaves_a_bounded_log(trained: Trained, stream: list[Tensor]) -> None:
    model = trained("erm")
    guard = guarded(model, Sick(model, nan, after=0))
    broken = stream[0][:2].index_fill(0, torch.tensor([1]), float("nan"))
    for _ in range(1500):
        assert torch.isfinite(guard(broken)).all()
    assert len(guard.log) == 1000
    assert guard.counts["non-finite image"] == 1500
    assert guard.counts["finite"] <= math.log2(1500)  # each trip makes the next one rarer


@pytest.mark.parametrize("name", ["trial", "memory", "snapshot_every", "max_cost", "budget", "probation"])
def test_settings_that_make_no_sense(name: str, trained: Trained) -> None:
    with pytest.raises(InputError, match=rf"{name} must be at least"):
        adapt(trained("erm", steps=0), "source", guard={name: -1})


def test_on_probation_the_trained_model_answers(trained: Trained, stream: list[Tensor]) -> None:
    """And an adapter that is ill from the start never gets to answer."""
    model = trained("erm", steps=40)
    guard = guarded(model, adapt(model, "itta", objective="plain"), probation=24)
    same = [torch.equal(guard(x), expected) for x, expected in zip(stream[:6], source(model, stream))]
    assert same == [True, True, False, False, False, False]
    sick = guarded(model, Sick(model, ILLNESSES["cost"], after=0), probation=64)
    assert all(torch.equal(sick(x), expected) for x, expected in zip(stream, source(model, stream)))
    assert sick.log[0].action == "reset"


def test_every_watch_is_in_the_table() -> None:
    names = ["finite", "cost", "feature norm", "entropy", "class balance", "loss", "estimated gain"]
    assert list(WATCHES) == names


class Known(Source):
    """The right classes: on a sorted stream what neighbours would say, in random order what nobody can know."""

    labels: Tensor
    seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return 10 * torch.nn.functional.one_hot(self.labels[self.seen - len(x) : self.seen], 3).float()


@pytest.mark.parametrize("kind", ["sorted", "iid"])
def test_what_follows_from_the_neighbours_is_no_harm(kind: str, trained: Trained, toy_batches: Batches) -> None:
    """Where neighbours are alike, answers that the trained model alone would not give may be right; else they cost."""
    model = trained("erm", steps=40, lr=3e-3)
    x, y = (torch.cat(part) for part in zip(*(toy_batches(900 + i, n=60)[1] for i in range(8))))
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(1))
    order = y.argsort(stable=True) if kind == "sorted" else torch.arange(len(y))
    x, y = (0.15 * x + 0.85 * noise)[order], y[order]
    logits = torch.cat(source(model, list(x.split(12))))
    assert 0.05 < (logits.argmax(1) != y).float().mean() < 0.6
    inner = Known(model, default(Source.Hparams))
    inner.labels = y
    guard = guarded(model, inner, min_entropy_ratio=0.0, max_cost=0.0)
    guard.stream(logits.log_softmax(1))  # the order of the stream is known from earlier images
    for part in x.split(12):
        guard(part)
    assert ("cost" in guard.counts) == (kind == "iid")
