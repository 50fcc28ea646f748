"""The guard: healthy adapters are left alone, sick ones are taken back, and a prediction comes whatever happens."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from itta.adapters import ADAPTERS, Adapter, Guard, adapt
from itta.adapters.guard import Means
from itta.adapters.source import Source
from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.hparams import default

Trained = Callable[..., Algorithm]
Batches = Callable[..., list[Batch]]


class Sick(Source):
    """The trained model, until it falls ill: then ``illness`` spoils its logits, and a reset cures it."""

    def __init__(self, trained: Algorithm, illness: Callable[[Tensor], Tensor], after: int) -> None:
        super().__init__(trained, default(Source.Hparams))
        self.illness, self.after, self.seen = illness, after, 0

    def __call__(self, x: Tensor) -> Tensor:
        self.seen += 1
        logits = super().__call__(x)
        return self.illness(logits) if self.seen > self.after else logits

    def reset(self) -> None:
        self.seen = 0

    def state_dict(self) -> dict[str, Tensor]:
        return {"seen": torch.tensor(self.seen)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.seen = int(state["seen"])


def nan(logits: Tensor) -> Tensor:
    return logits * float("nan")


FIRST = torch.tensor([3.0, 0.0, 0.0])
ILLNESSES: dict[str, Callable[[Tensor], Tensor]] = {
    "finite": nan,
    "entropy": lambda logits: 1e4 * logits,
    "class balance": lambda logits: logits * 1e-6 + FIRST,
    "disagreement": lambda logits: logits.roll(1, 1),
}


@pytest.fixture
def stream(toy_batches: Batches) -> list[Tensor]:
    return [toy_batches(300 + i, n=12)[1][0] for i in range(40)]


def guarded(trained: Algorithm, inner: Adapter, **settings: object) -> Guard:
    return Guard(trained, inner, default(Guard.Hparams, **settings))


def source(model: Algorithm, stream: list[Tensor]) -> list[Tensor]:
    with torch.no_grad():
        return [model.predict(x) for x in stream]


def test_a_healthy_adapter_is_left_alone(trained: Trained, stream: list[Tensor]) -> None:
    model = trained("erm", steps=40)
    guard, plain = adapt(model, "itta", guard=True, objective="plain"), adapt(model, "itta", objective="plain")
    for x in stream:
        assert torch.equal(guard(x), plain(x))
    assert isinstance(guard, Guard)
    assert guard.counts == {}
    assert guard.describe()["interventions"] == {}
    assert (guard.name, guard.predicts, guard.needs.changes) == ("guarded itta", "after", "added blocks Θ")


@pytest.mark.parametrize("watch", ILLNESSES)
def test_each_watch_trips(watch: str, trained: Trained, stream: list[Tensor]) -> None:
    """Ill from the 16th batch on: never again a sick answer once seen, the rest are the trained model's."""
    model = trained("erm", steps=40)
    alone = {"max_disagreement": 1.0} if watch == "class balance" else {}  # or that watch would be the first to trip
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
    model = trained("erm", steps=40)
    inner = Sick(model, nan, after=8)
    guard = guarded(model, inner, snapshot_every=48, memory=24, pause=36)
    for x in stream:
        guard(x)
    actions = [i.action for i in guard.log]
    assert actions[:2] == ["rolled back", "reset"]
    resting = [i.image for i in guard.log]
    assert all(b > a for a, b in zip(resting, resting[1:]))
    first_reset = guard.log[1].image
    later = [i.image for i in list(guard.log)[2:]]
    assert not later or later[0] > first_reset + 36


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
        assert torch.equal(guard(stream[1][:1]), model.predict(stream[1][:1]))
    assert guard.counts == {"non-finite image": 1, "refused batch": 1}
    assert (guard(torch.full_like(x, float("nan"))) == 0).all()
    assert torch.isfinite(guard(torch.full_like(x, 0.5))).all()


@pytest.mark.parametrize("name", [n for n in ADAPTERS if n != "source"])
def test_the_state_goes_on_elsewhere(name: str, trained_for: Trained, stream: list[Tensor]) -> None:
    model = trained_for(name)
    whole, other = adapt(model, name, guard={"memory": 24}), adapt(model, name, guard={"memory": 24})
    for x in stream[:4]:
        whole(x)
    other.load_state_dict(whole.state_dict())
    assert all(torch.equal(whole(x), other(x)) for x in stream[4:7])
    whole.reset()
    fresh = adapt(model, name, guard={"memory": 24})
    assert all(torch.equal(whole(x), fresh(x)) for x in stream[:3])


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
    assert kept > ruined + 0.1


def test_a_long_stream_leaves_a_bounded_log(trained: Trained, stream: list[Tensor]) -> None:
    model = trained("erm")
    guard = guarded(model, Sick(model, nan, after=0), pause=0, memory=4)
    for i in range(1500):
        assert torch.isfinite(guard(stream[i % 40][:2])).all()
    assert len(guard.log) == 1000
    assert sum(guard.counts.values()) == 1500
