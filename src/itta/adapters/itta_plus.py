"""ITTA+. Our own: several answers to each image, and a stream that is understood; no gradient.

Three answers are averaged, each of which is wrong in its own way: the trained model's; the restyled model's, for which
Θ is set in closed form, a scale and a shift per channel after the first block that give the target's images, taken
together, the average style of the sources; and that of class prototypes (T3A, Iwasawa and Matsuo, NeurIPS 2021), made
as sure as the trained model is. Then the stream is diagnosed (`Diagnosis`): neighbours vote where they are alike, and
answers that are given too often are held back. Everything rests on all images seen so far, so that one at a time serves
as well as many. What was measured, how the constants were chosen, and what did not work: docs/adapt/itta_plus.md.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itta.adapters.base import Adapter, Needs, check_at_least, check_shares
from itta.adapters.diagnosis import Diagnosis, Judged, Rules
from itta.adapters.frozen import Combined, Frozen
from itta.adapters.supports import Supports, has_prototypes
from itta.errors import InputError
from itta.functional.entropy import entropy, log_mean_probability
from itta.functional.sharpening import sharpen
from itta.hparams import hp
from itta.models.trained import Trained
from itta.nn.affine_stack import AffineStack, channel_shape
from itta.nn.optimizer import with_prefix, without_prefix
from itta.nn.style_mixing import style

ANSWERS = ("plain", "restyled", "prototypes")
HISTORY = 1000  # batches whose diagnosis is kept for a look at the stream


@dataclass(frozen=True)
class Hparams:
    answers: tuple[str, ...] = hp(ANSWERS, "answers to average; one that the model does not allow is left out")
    temperature: bool = hp(True, "soften answers as calibrated on held-out source images, where the model knows how")
    correction: float = hp(Rules.correction, "c: share of the model's bias, log ḡ/π̂, that is taken back")
    pull: float = hp(Rules.pull, "how strongly the prior π̂ is pulled towards equal classes")
    neighbours: bool = hp(Rules.neighbours, "let neighbours vote where the diagnosis finds them alike")
    low: float = hp(Rules.low, "standard errors beyond chance from which on neighbours count")
    high: float = hp(Rules.high, "standard errors beyond chance at which they count in full")
    stays: tuple[float, ...] = hp(Rules.stays, "chances that the next image is of the same class, tried side by side")
    ordered: bool = hp(Rules.ordered, "whether the order within a batch means something; else only that of the batches")
    strength: float = hp(1.0, "how far to go from the target's style (0) to the sources' (1)")
    blocks: tuple[str, ...] = hp((), "restyle after these, of the two that the style bank knows; none named: the first")
    supports: int = hp(20, "features kept for each prototype, those of the lowest entropy; -1 keeps all")
    window: int = hp(128, "images over which the prototypes' answers are made as sure as the trained model's")
    prior: float = hp(Rules.start, "images of source style, and of equal classes, that running means start with")
    memory: int = hp(Rules.memory, "images over which running means are taken")


class Seen(NamedTuple):
    """What the network says about a batch."""

    plain: Tensor  # logits [B, C]
    restyled: Tensor | None  # logits with f_Θ
    features: Tensor  # [B, d], without


class ITTAPlus(Adapter):
    """f_Θ(z) = a∘z + b, per channel, with a = (σ_S/σ_T)^λ and b = μ_T + λ·(μ_S − μ_T) − a∘μ_T,

    (μ, σ) the mean style of the source domains S, and of the target's images so far T, λ the strength. With
    T the temperature, c_k T3A's prototypes and s such that the mean entropy of the third equals that of the first:
    p = mean of softmax(f_φ(f_θ(x))/T), softmax(f_φ(f_Θ(f_θ(x)))/T) and softmax(s·cos(z, c_k)), and `Diagnosis`.

    The networks without and with f_Θ run as one batch from f_Θ on.
    """

    name = "itta+"
    paper = "none: our own, after ITTA, Chen et al., CVPR 2023"
    Hparams = Hparams
    needs = Needs(
        source="style bank, confusions, temperature: each if the model has it",
        changes="answers: averaged over three, then by the prior of the stream",
    )
    candidates = ({}, {"neighbours": False})
    predicts = "after"
    guarded = True
    # no referee: it knows less of the stream than itta+ does, and took back half of what was gained on sorted streams
    guard = {"probation": 0, "budget": 1e9, "min_balance": 0.0, "min_entropy_ratio": 0.0}

    def __init__(self, trained: Trained, hp: Any) -> None:
        super().__init__(trained, hp)
        check_at_least(1, hp, "memory", "window")
        check_at_least(0, hp, "prior", "pull", "low")
        check_shares(hp, "correction", "strength")
        self.check_settings()
        self.seen, self.weight, self.sharpness = 0, 0.0, 1.0  # images; those that the style remembers; s
        self.scores = self.entropies = torch.zeros(0)  # of the prototypes and of the trained model, over the window
        self.styles: dict[str, Tensor] = {}  # block -> sum of the target's styles, [2, C]
        self.changed: dict[str, int] = {}  # step -> images whose class it changed
        self.history: deque[tuple[int, float, float]] = deque(maxlen=HISTORY)  # images, ρ, κ after each batch
        self.left_out: dict[str, str] = {}  # what cannot be done with this model, and why
        self.source = self.source_styles() if "restyled" in hp.answers else {}
        known = self.model.confusions
        if known is None:
            self.left_out["confusions"] = "the model does not carry them: frequent answers count as frequent classes"
        self.temperature = float(known["temperature"]) if known is not None and hp.temperature else 1.0
        rules = Rules(
            hp.correction, hp.pull, hp.stays, hp.low, hp.high, hp.memory, max(hp.prior, 1.0), hp.ordered, hp.neighbours
        )
        self.stream = Diagnosis(self.model.n_classes, rules, None if known is None else known["mean"])
        self.supports = self.make_supports() if "prototypes" in hp.answers else None
        self.reset()

    def check_settings(self) -> None:
        hp = self.hp
        if "plain" not in hp.answers or not set(hp.answers) <= set(ANSWERS):
            raise InputError(f"answers must name plain, and can name {' and '.join(ANSWERS[1:])}; got {hp.answers}.")
        if not hp.high > hp.low:
            raise InputError(f"high must be above low ({hp.low}), got {hp.high}.")
        if not hp.stays or not all(0 <= s < 1 for s in hp.stays):
            raise InputError(f"stays must name chances of at least 0 and below 1, got {hp.stays}.")

    def source_styles(self) -> dict[str, Tensor]:
        """Block -> mean and deviation of its channels, [2, C], on average over the sources; none without a bank."""
        bank, backbone = self.model.style_bank, self.model.backbone
        if bank is None:
            self.left_out["restyled"] = "the model carries no style bank"
            return {}
        blocks = sorted(self.hp.blocks or backbone.block_names[:1], key=backbone.index)
        if not set(blocks) <= set(bank.mean):
            raise InputError(f"itta+ can restyle after {' and '.join(bank.mean)}, not after {', '.join(blocks)}.")
        like = next(self.model.parameters())
        return {b: torch.stack([bank.mean[b], bank.std[b]]).to(like).mean(1) for b in blocks}

    def make_supports(self) -> Supports | None:
        head = self.model.head
        if isinstance(head, nn.Linear) and has_prototypes(head, self.model.backbone.dim):
            return Supports(head, self.hp.supports)
        self.left_out["prototypes"] = "the model's head is not linear on the features"
        return None

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        return self.judge(self.look(x))

    def look(self, x: Tensor) -> Seen:
        """Run the network, without f_Θ and with it; learn the target's style."""
        n, backbone = len(x), self.still.backbone
        kept = (1 - 1 / self.hp.memory) ** n
        self.weight = kept * self.weight + n
        if not self.source:
            z = self.still.features(x)
            return Seen(self.model.classify(z), None, z)

        def restyle_second_half(block: str, z: Tensor) -> Tensor:
            return torch.cat([z[:n], self.restyle(block, z[-n:], kept)]) if block in self.source else z

        first = next(iter(self.source))  # from here on there are two halves
        features = backbone.resume(first, backbone.until(first, self.model.inputs(x)), restyle_second_half)
        plain, restyled = self.model.classify(features).split(n)
        return Seen(plain, restyled, features[:n])

    def judge(self, seen: Seen) -> Tensor:
        """Average the answers, and diagnose the stream; log-probabilities [B, C]."""
        self.reference, self.seen = seen.plain, self.seen + len(seen.plain)
        found = [seen.plain / self.temperature]
        if seen.restyled is not None:
            found.append(seen.restyled / self.temperature)
        if self.supports is not None:
            found.append(self.ask_prototypes(self.supports, seen))
        stages = [log_mean_probability(found[: i + 1]) for i in range(len(found))]
        judged = self.stream(stages[-1])
        self.note([*stages, judged.corrected, judged.posterior], judged)
        return judged.posterior

    def ask_prototypes(self, supports: Supports, seen: Seen) -> Tensor:
        """The prototypes' scores, the batch itself among their supports, as sure as the trained model's answers."""
        supports.add(seen.features, seen.plain)
        scores = F.normalize(seen.features) @ supports.prototypes().T
        sureness = entropy(seen.plain / self.temperature)
        window = max(self.hp.window, len(scores))
        self.scores = torch.cat([self.scores, scores])[-window:]
        self.entropies = torch.cat([self.entropies, sureness])[-window:]
        self.sharpness = sharpen(self.scores, float(self.entropies.mean()), self.sharpness)
        return scores * self.sharpness

    def restyle(self, block: str, z: Tensor, kept: float) -> Tensor:
        """Learn the target's style from the batch too, and move the batch by what lies between it and the sources'."""
        mean, std = style(z)
        self.styles[block] = kept * self.styles[block] + torch.stack([s.flatten(1).sum(0) for s in (mean, std)])
        a, b = (c.view_as(mean[:1]) for c in self.theta(block))
        return z * a + b

    def theta(self, block: str) -> tuple[Tensor, Tensor]:
        """f_Θ after a block as it is now: a and b, [C] each."""
        prior, strength = self.hp.prior, self.hp.strength
        mean, std = (self.styles[block] + prior * self.source[block]) / (self.weight + prior)
        source_mean, source_std = self.source[block]
        a = (source_std / std) ** strength
        return a, mean + strength * (source_mean - mean) - a * mean

    def note(self, stages: list[Tensor], judged: Judged) -> None:
        """Keep what a look at the stream shows: ρ and κ, the prior in use, and which step changed how many classes."""
        names = [*(("restyled",) * (len(self.source) > 0)), *(("prototypes",) * (self.supports is not None))]
        classes = [stage.argmax(1) for stage in stages]
        for name, before, after in zip((*names, "held back", "neighbours"), classes, classes[1:]):
            self.changed[name] = self.changed.get(name, 0) + int((before != after).sum())
        self.prior = judged.prior
        self.history.append((self.seen, float(judged.rho[-1]), float(judged.kappa[-1])))

    def diagnosis(self) -> dict[str, Any]:
        """How the stream looks so far, as plain values."""
        return {
            "images": self.seen,
            "rho": self.stream.rho,
            "kappa": self.stream.kappa,
            "prior": dict(zip(self.model.classes, self.prior.tolist())),
            "changed": dict(self.changed),  # step -> images whose class it changed
            "left out": dict(self.left_out),
            "history": [{"images": n, "rho": rho, "kappa": kappa} for n, rho, kappa in self.history],
        }

    def network(self) -> Trained:
        raise InputError(
            "itta+ answers with the mean of several answers, not with one network: choose another adapter."
        )

    @torch.no_grad()
    def frozen(self) -> nn.Module:
        """The averaged answers, and what is held back, as they are now; the neighbours' vote cannot be frozen."""
        if self.seen == 0:
            return Frozen(self.name, self.model)
        prototypes = None if self.supports is None else self.sharpness * self.supports.prototypes()
        return Combined(
            Frozen(self.name, self.model, self.added_blocks()), self.temperature, prototypes, self.stream.bias()
        )

    def added_blocks(self) -> nn.ModuleDict:
        """f_Θ after each block as it is now."""
        shapes = self.model.backbone.block_shapes(self.model.image_size)
        stacks = {block: AffineStack(channel_shape(shapes[block]), depth=1) for block in self.source}
        for block, stack in stacks.items():
            for p, value in zip((stack.weight, stack.bias), self.theta(block)):
                p.data = value.view_as(p).clone()
        return nn.ModuleDict(stacks)

    def reset(self) -> None:
        like, classes = next(self.model.parameters()), self.model.n_classes
        self.seen, self.weight, self.sharpness = 0, 0.0, 1.0
        self.styles = {block: torch.zeros_like(s) for block, s in self.source.items()}
        self.scores, self.entropies = like.new_zeros(0, classes), like.new_zeros(0)
        self.stream.reset()
        if self.supports is not None:
            self.supports.reset()
        self.changed, self.prior = {}, torch.full((classes,), 1 / classes)
        self.history.clear()

    def state(self) -> dict[str, Tensor]:
        """All that later answers rest on; what is kept for a look stays behind."""
        found = with_prefix("styles.", {k: v.clone() for k, v in self.styles.items()})
        found |= with_prefix("stream.", self.stream.state_dict())
        found |= {"scores": self.scores.clone(), "entropies": self.entropies.clone()}
        if self.supports is not None:
            found |= with_prefix("supports.", self.supports.state_dict())
        return {**found, "numbers": torch.tensor([self.seen, self.weight, self.sharpness], dtype=torch.double)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.styles = {k: v.clone() for k, v in without_prefix("styles.", state).items()}
        self.stream.load_state_dict(without_prefix("stream.", state))
        self.scores, self.entropies = state["scores"].clone(), state["entropies"].clone()
        if self.supports is not None:
            self.supports.load_state_dict(without_prefix("supports.", state))
        seen, self.weight, self.sharpness = state["numbers"].tolist()
        self.seen = int(seen)
