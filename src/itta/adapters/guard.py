"""A guard around any adapter: it looks for signs of harm, without labels, and undoes harmful updates.

Our own. The module `watches` lists the signs. The referee is the trained model with the diagnosis of the stream
(`Diagnosis`). So the guard does not count an answer as harm if it follows from the images before, or from the class
frequencies of the stream. The trained model's answers cost one more plain pass for each batch.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from itta.adapters.base import Adapter, check_at_least, check_batch, finite_images
from itta.adapters.diagnosis import Diagnosis, Rules
from itta.adapters.estimated_gain import Tally
from itta.adapters.frozen import Frozen
from itta.adapters.watches import WATCHES, Means, Trip, Watched, excess_cost, spread
from itta.errors import InputError
from itta.functional.extremes import extremes
from itta.functional.transfers import fetch
from itta.hparams import hp
from itta.models.trained import Trained
from itta.nn.optimizer import with_prefix, without_prefix

LOG = 1000  # interventions kept in full; the counts go on
NO_BUDGET = 1e9  # more answers than any stream has


@dataclass(frozen=True)
class Hparams:
    max_cost: float = hp(0.05, "allowed loss of right answers, as a share of the referee's doubt")
    budget: float = hp(1.5, "right answers that may be lost beyond the allowed loss before the guard intervenes")
    probation: int = hp(256, "first images, which the trained model answers while the adapter is watched")
    trial: int = hp(64, "images that the trained model answers after a trip; the number doubles with each trip")
    memory: int = hp(64, "images over which running means are taken")
    snapshot_every: int = hp(64, "images between two snapshots of a healthy adapter")
    max_norm_ratio: float = hp(2.0, "largest ratio of the features' length to the trained model's, or of the inverse")
    min_entropy_ratio: float = hp(0.1, "smallest entropy of the predictions, as a share of the referee's")
    min_balance: float = hp(0.6, "smallest number of predicted classes, as a share of the referee's")
    max_loss_ratio: float = hp(5.0, "largest ratio of the loss to its long-run mean")
    max_loss_chance: float = hp(0.9, "largest probability that the adapter loses, estimated without labels; 1: any")


class Intervention(NamedTuple):
    image: int  # images seen until then
    watch: str
    value: float
    limit: float
    action: str  # "rolled back", "reset" or "left out"


class Guard(Adapter):
    """Answer with the adapter inside while no watch trips, and with the trained model after a trip.

    The referee gives class k the probability q_k. If the trained model answers i and the adapter answers j, the referee
    expects to lose q_i − q_j right answers. It doubts its own answer by 1 − max q. The debt
    D ← max(0, D + Σ (q_i − q_j) − max_cost·(1 − max q)), summed over the images of each batch (Page's CUSUM), must stay
    within ``budget``. So the expected loss before the guard intervenes is bounded, for batches of any size.

    - Probation: at first the adapter learns and is watched, and the trained model answers.
    - First trip: the adapter returns to its last healthy snapshot and goes on trial. On trial it learns and is watched,
      and the trained model answers.
    - Trip on trial: the adapter returns to its start, and rests before the next trial.
    - Each trip doubles the length of trials and rests, so the budget is spent less and less often.

    Every image gets an answer. The trained model answers a batch that the adapter refuses; an image that is not finite
    gets equal logits.
    """

    name = "guard"
    stays = ("snapshot",)  # as a state in a file
    paper = "none: our own watch over any adapter"
    Hparams = Hparams

    def __init__(self, trained: Trained, inner: Adapter, hp: Any) -> None:
        super().__init__(trained, hp)  # self.model: the trained model, which never moves
        check_at_least(1, hp, "trial", "memory", "snapshot_every")
        check_at_least(0, hp, "max_cost", "budget", "probation")
        self.inner = inner
        known = self.model.confusions
        self.temperature = 1.0 if known is None else float(known["temperature"])
        self.stream = Diagnosis(self.model.n_classes, Rules(), known)
        self.name, self.predicts = f"guarded {inner.name}", inner.predicts  # type: ignore[misc]
        self.needs = replace(inner.needs, batch=1)  # type: ignore[misc]
        self.begin()

    def reset(self) -> None:
        self.inner.reset()
        self.begin()

    def begin(self) -> None:
        """Set the guard's own state to that before the first image."""
        self.images = self.before = 0  # seen, and seen before the batch at hand
        self.trips = self.snapshot_at = 0
        self.resume_at = 0  # images after which the adapter learns again
        self.trusted_at = self.hp.probation  # and after which its answers count
        self.stream.reset()
        self.snapshot = self.inner.state_dict()
        self.means, self.debt, self.tally = Means(self.hp.memory), 0.0, Tally(self.model.stand_ins)
        self.scale = 0.0  # factor from the adapter's spread of logits to the trained model's, on the first batch
        self.counts: dict[str, int] = {}
        self.log: deque[Intervention] = deque(maxlen=LOG)

    @torch.inference_mode(False)
    def forward(self, x: Tensor) -> Tensor:
        check_batch(x)
        self.before, self.images = self.images, self.images + len(x)
        x = x.clone() if x.is_inference() else x
        finite = finite_images(x)
        if finite.all():
            return only_finite(self.predict(x))
        self.note(Trip("non-finite image", float((~finite).sum()), 0.0), "left out")
        logits = next(self.model.parameters()).new_zeros(len(x), self.model.n_classes)
        if finite.any():
            logits[finite.to(logits.device)] = only_finite(self.predict(x[finite]))
        return logits

    def predict(self, x: Tensor) -> Tensor:
        if self.resting:
            return self.trained_answer(x)[0]
        with noting_features(self.inner.model.head) as features:
            try:
                self.inner.checked = x
                logits = self.inner(x)
            except InputError:  # the batch is too small, or its images have another size
                self.note(Trip("refused batch", float(len(x)), float(self.inner.needs.batch)), "left out")
                return self.trained_answer(x)[0]
        reference, source_features = self.inner.reference, features[0] if features else None
        if reference is None or source_features is None:  # else the adapter has run the trained model as its first pass
            reference, source_features = self.trained_answer(x)
        trip = self.watch(logits, reference, features[-1] if features else source_features, source_features)
        if trip is None:
            self.keep_snapshot()
            return reference if self.on_trial else logits
        self.note(trip, self.take_back())
        return reference

    @property
    def asks_referee(self) -> bool:
        """Whether a watch that compares with the referee can trip; if not, the stream need not be diagnosed."""
        hp = self.hp
        estimates = hp.max_loss_chance < 1 and self.tally.worth is not None
        return bool(hp.budget < NO_BUDGET or hp.min_entropy_ratio > 0 or hp.min_balance > 0 or estimates)

    @property
    def resting(self) -> bool:
        return self.images <= self.resume_at

    @property
    def on_trial(self) -> bool:
        return self.images <= self.trusted_at

    @torch.no_grad()
    def trained_answer(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the trained model's logits and features."""
        with noting_features(self.model.head) as features:
            return self.still.predict(self.place(x)), features[-1]

    def watch(self, logits: Tensor, reference: Tensor, features: Tensor, source_features: Tensor) -> Trip | None:
        """Return the first watch that trips. All values are fetched at once, and judged on the host."""
        if self.inner.fetched is None:
            lengths = (of.norm(dim=1).mean() for of in (features, source_features))
            logits, reference, *numbers = fetch(logits, reference, *lengths, torch.as_tensor(self.inner.latest_loss))
            norm, source_norm, loss = map(float, numbers)
        else:  # fetched already; both answers come from one pass, so the features have the same lengths
            (logits, reference), norm, source_norm, loss = self.inner.fetched, 1.0, 1.0, float(self.inner.latest_loss)
        sound = are_finite(logits, reference) and math.isfinite(loss)
        if sound:
            referee = (reference / self.temperature).log_softmax(1)
            if self.asks_referee:
                referee = self.stream(referee).posterior
                self.tally.add(logits, reference, referee)
                self.debt = max(0.0, self.debt + excess_cost(logits, reference, referee, self.hp.max_cost))
            self.scale = self.scale or float(spread(reference) / spread(logits))
            self.means.add(logits * self.scale, referee, loss, norm / source_norm if source_norm > 0 else 1.0)
        seen = Watched(sound, self.debt, self.means, self.tally, self.hp)
        return next((trip for watch in WATCHES.values() if (trip := watch(seen)) is not None), None)

    def take_back(self) -> str:
        """Return the adapter to its last healthy snapshot or to its start; name the action."""
        self.means, self.debt = Means(self.hp.memory), 0.0
        self.tally.clear()
        length = self.hp.trial * 2**self.trips
        self.trips += 1
        if self.on_trial:
            self.inner.reset()
            self.snapshot, self.snapshot_at = self.inner.state_dict(), self.images
            self.resume_at = self.images + length
            self.trusted_at = self.resume_at + length
            return "reset"
        self.inner.load_state_dict(self.snapshot)
        self.trusted_at = self.images + length
        return "rolled back"

    def keep_snapshot(self) -> None:
        if self.means.full and self.debt == 0 and self.images - self.snapshot_at >= self.hp.snapshot_every:
            self.snapshot, self.snapshot_at = self.inner.state_dict(), self.images

    def note(self, trip: Trip, action: str) -> None:
        self.counts[trip.watch] = self.counts.get(trip.watch, 0) + 1
        self.log.append(Intervention(self.before, *trip, action))

    def network(self) -> Trained:
        return self.inner.network()

    def adapt_block(self, block: str, z: Tensor) -> Tensor:
        return self.inner.adapt_block(block, z)

    def frozen(self) -> nn.Module:
        """Return the adapter inside, or the trained model while the adapter is on trial."""
        return Frozen(self.name, self.model) if self.images < self.trusted_at else self.inner.frozen()

    def describe(self) -> dict[str, Any]:
        return {**self.inner.describe(), "guard": asdict(self.hp), "interventions": dict(self.counts)}

    def state(self) -> dict[str, Tensor]:
        """Return the adapter's state, its snapshot, and the guard's own state without counts and log."""
        numbers = [self.images, self.trips, self.snapshot_at, self.resume_at, self.trusted_at]
        return {
            **with_prefix("inner.", self.inner.state_dict()),
            **with_prefix("snapshot.", {k: v.clone() for k, v in self.snapshot.items()}),
            **with_prefix("means.", self.means.tensors()),
            **with_prefix("tally.", self.tally.tensors()),
            **with_prefix("stream.", self.stream.state_dict()),
            "numbers": torch.tensor(numbers),
            "debt, scale": torch.tensor([self.debt, self.scale], dtype=torch.double),
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.inner.load_state_dict(without_prefix("inner.", state))
        self.snapshot = {k: v.clone() for k, v in without_prefix("snapshot.", state).items()}
        self.means = Means(self.hp.memory, without_prefix("means.", state))
        self.tally = Tally(self.model.stand_ins, without_prefix("tally.", state).get("sums"))  # older states have none
        self.stream.load_state_dict(without_prefix("stream.", state))
        self.images, self.trips, self.snapshot_at, self.resume_at, self.trusted_at = state["numbers"].tolist()
        self.debt, self.scale = state["debt, scale"].tolist()


def only_finite(logits: Tensor) -> Tensor:
    """Replace the logits of images on which the network overflowed by equal logits."""
    return torch.where(torch.isfinite(logits).all(1, keepdim=True), logits, 0.0)


def are_finite(*tensors: Tensor) -> bool:
    """Tell whether all values are finite."""
    return all(math.isfinite(value) for of in tensors for value in extremes(of))


@contextmanager
def noting_features(head: nn.Module) -> Iterator[list[Tensor]]:
    """Note the features that enter the head, [B, d] for each pass."""
    found: list[Tensor] = []

    def note(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        found.append(args[0].detach())

    handle = head.register_forward_pre_hook(note)
    try:
        yield found
    finally:
        handle.remove()
