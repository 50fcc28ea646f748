"""ITTA+. Our own: average several answers to each image, and use the order in which the images come. No gradient.

Each image gets three answers: the trained model's; that of the same network with the target's style moved to the
sources' (`TargetStyle`); and that of class prototypes (T3A, Iwasawa and Matsuo, NeurIPS 2021), as sure on average as
the first. `Diagnosis` corrects their weighted mean by the class frequencies and, if neighbouring images tend to have
the same class, by the answers to the images before. How it was chosen and measured: docs/adapt/itta_plus.md.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itta.adapters.base import Adapter, Needs, check_at_least, check_shares
from itta.adapters.diagnosis import Diagnosis, Judged, Rules
from itta.adapters.frequencies import read_frequencies
from itta.adapters.frozen import Combined, Frozen
from itta.adapters.supports import Supports, has_prototypes
from itta.adapters.target_style import TargetStyle, append_restyled, styles_of
from itta.errors import InputError
from itta.functional.entropy import entropy, running_means, total_variation
from itta.functional.preference import prefer
from itta.functional.sharpening import sharpen
from itta.functional.transfers import fetch, send
from itta.hparams import hp
from itta.models.trained import Trained
from itta.nn.affine_stack import channel_shape
from itta.nn.backbone import After, keep
from itta.nn.optimizer import with_prefix, without_prefix

ANSWERS = ("plain", "restyled", "prototypes")
HISTORY = 1000  # batches with a kept diagnosis


@dataclass(frozen=True)
class Hparams:
    answers: tuple[str, ...] = hp(ANSWERS, "answers to average; an answer that the model cannot give is left out")
    weight: float = hp(0.25, "weight of the prototypes' answer; the other answers have weight 1")
    margin: float = hp(0.0, "m: in random order a class changes only if another is e^m times as probable")
    temperature: bool = hp(True, "divide logits by the temperature that was calibrated on held-out source images")
    correction: float = hp(Rules.correction, "c: share of the correction by class frequencies that is applied")
    pull: float = hp(Rules.pull, "largest weight of usual class frequencies in the estimate of the target's, π̂")
    rise: float = hp(Rules.rise, "growth of that weight with the distance between plain and restyled answers")
    usual: Literal["equal", "between", "sources"] = hp(Rules.usual, "class frequencies to expect; sources: theirs")
    frequencies: tuple[str, ...] = hp((), "class:number, how often classes come: shares, or counted images", later=True)
    neighbours: bool = hp(Rules.neighbours, "use the answers to the images before, if neighbours are alike")
    low: float = hp(Rules.low, "standard errors beyond chance at which neighbours begin to count")
    high: float = hp(Rules.high, "standard errors beyond chance at which neighbours count in full")
    stays: tuple[float, ...] = hp(Rules.stays, "probabilities that the next image has the same class, all in use")
    ordered: bool = hp(Rules.ordered, "the order of images within a batch has a meaning; if not, use batch means")
    strength: float = hp(1.0, "λ: how far to move from the target's style (0) to the sources' style (1)")
    blocks: tuple[str, ...] = hp((), "restyle after these blocks of the style bank; none named: after the first")
    change: float = hp(1.5, "jump of the style, in variances, that counts as a new domain; inf: none does")
    supports: int = hp(20, "features of the lowest entropy to keep for each prototype; -1 keeps all")
    window: int = hp(128, "images over which the prototypes' mean entropy is matched with the trained model's")
    prior: float = hp(Rules.start, "images of source style and of equal classes that running means start with")
    memory: int = hp(Rules.memory, "images over which running means are taken, within one domain")


class Seen(NamedTuple):
    """The output of the network for a batch."""

    plain: Tensor  # logits [B, C]
    restyled: Tensor | None  # logits with f_Θ
    features: Tensor  # [B, d], without
    start: tuple[Tensor, ...] = ()  # output of the block that f_Θ comes after first, and its styles [B, 2, C]


class ITTAPlus(Adapter):
    """p = (softmax(f_φ(f_θ(x))/T) + softmax(f_φ(f_Θ(f_θ(x)))/T) + w·softmax(s·cos(z, c_k)))/(2 + w), then `Diagnosis`.

    f_Θ is that of `TargetStyle`, T the temperature, c_k are T3A's prototypes, w is their weight, and the factor s gives
    the third answer the mean entropy of the first. A margin m makes the model's class e^((1−κ)·m) times as probable.
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
    stays = ("scores", "entropies", "prior")
    seen: int  # images
    sharpness: float  # s
    scores: Tensor  # of the prototypes, for the latest images
    entropies: Tensor  # of the trained model's answers to the same images
    # Only numbers that are not finite trip the guard: its other watches cost half of the gain on sorted streams.
    guard = {"probation": 0, "budget": 1e9, "min_balance": 0.0, "min_entropy_ratio": 0.0, "max_loss_chance": 1.0}

    def __init__(self, trained: Trained, hp: Any) -> None:
        super().__init__(trained, hp)
        check_at_least(1, hp, "memory", "window")
        check_at_least(0, hp, "prior", "pull", "rise", "low", "change", "weight", "margin")
        check_shares(hp, "correction", "strength")
        self.check_settings()
        self.onlooker: After = keep  # sees the outputs of the trained model's blocks
        self.left_out: dict[str, str] = {}  # part that this model does not allow -> reason
        self.history: deque[tuple[int, float, float]] = deque(maxlen=HISTORY)  # images, ρ, κ after each batch
        known = self.model.confusions
        if known is None:
            self.left_out["confusions"] = "the model does not carry them: frequent answers count as frequent classes"
        self.temperature = float(known["temperature"]) if known is not None and hp.temperature else 1.0
        rules = Rules(
            hp.correction, hp.pull, hp.rise, hp.usual, hp.stays, hp.low, hp.high, hp.memory, max(hp.prior, 1.0),
            hp.ordered, hp.neighbours,
        )  # fmt: skip
        frequencies = read_frequencies(hp.frequencies, self.model.classes)
        self.stream = Diagnosis(self.model.n_classes, rules, known, frequencies)
        self.style = self.make_style() if "restyled" in hp.answers else None
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

    def make_style(self) -> TargetStyle | None:
        bank, backbone = self.model.style_bank, self.model.backbone
        if bank is None:
            self.left_out["restyled"] = "the model carries no style bank: changes of domain are not noticed either"
            return None
        blocks = sorted(self.hp.blocks or backbone.block_names[:1], key=backbone.index)
        if not set(blocks) <= set(bank.mean):
            raise InputError(f"itta+ can restyle after {' and '.join(bank.mean)}, not after {', '.join(blocks)}.")
        return TargetStyle(bank, blocks, next(self.model.parameters()))

    def make_supports(self) -> Supports | None:
        head = self.model.head
        if isinstance(head, nn.Linear) and has_prototypes(head, self.model.backbone.dim):
            return Supports(head, self.hp.supports)
        self.left_out["prototypes"] = "the model's head is not linear on the features"
        return None

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        seen = self.look(self.receive(x))
        found, styles = self.ask(seen)
        if self.style is not None and self.style.change.notice(styles[0], self.hp.change):
            self.forget()  # and run again: to ask before the pass would let the host wait in every batch
            seen = self.restyle(self.style, *seen.start)
            found, _ = self.ask(seen)
        self.embeddings = seen.features
        return self.judge(seen.plain, found)

    def look(self, x: Tensor) -> Seen:
        """Run the network, without f_Θ and with it; learn the style as if the domain were the same."""
        if self.style is None:
            z = self.still.features(x, self.onlooker)
            return Seen(self.model.classify(z), None, z)
        z = self.still.backbone.until(self.style.first, self.model.inputs(x), self.onlooker)
        return self.restyle(self.style, z, styles_of(z))

    def restyle(self, target: TargetStyle, z: Tensor, own: Tensor) -> Seen:
        """Run the network from the first f_Θ on, without f_Θ and with it."""
        n, first = len(z), target.first
        kept = target.fade(n, self.hp.memory)

        def restyle_second_half(block: str, z: Tensor) -> Tensor:
            self.onlooker(block, z[:n])
            if block not in target.source:
                return z
            second = z[-n:]  # after the first of these blocks there are two halves
            target.add(block, own if block == first else styles_of(second), kept)
            a, b = (c.view(channel_shape(z[0].shape)) for c in self.theta(block))
            return append_restyled(z[:n], second, a, b)

        features = self.still.backbone.resume(first, z, restyle_second_half)
        plain, restyled = self.model.classify(features).split(n)
        return Seen(plain, restyled, features[:n], (z, own))

    def theta(self, block: str) -> tuple[Tensor, Tensor]:
        """Return a and b of the present f_Θ after a block, [C] each."""
        assert self.style is not None
        return self.style.theta(block, self.hp.prior, self.hp.strength)

    def forget(self) -> None:
        """Start afresh in a new domain. Whether neighbours are alike is a fact about the stream, and stays."""
        self.changes.append(self.seen)
        self.stream.forget()
        self.scores, self.entropies = self.scores[:0], self.entropies[:0]
        if self.style is not None:
            self.style.forget()
        if self.supports is not None:
            self.supports.reset()

    def ask(self, seen: Seen) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Return the answers by name, and the styles. The host computes the rest."""
        given = {"plain": seen.plain, **({} if seen.restyled is None else {"restyled": seen.restyled})}
        given |= {} if self.supports is None else {"prototypes": self.ask_prototypes(self.supports, seen)}
        found = fetch(*given.values(), *seen.start[1:])
        return dict(zip(given, found)), found[len(given) :]

    def judge(self, plain: Tensor, found: dict[str, Tensor]) -> Tensor:
        """Average the answers, and diagnose the stream; log-probabilities [B, C]."""
        self.reference, self.seen = plain, self.seen + len(plain)
        answers = {name: logits / self.temperature for name, logits in found.items()}
        if "prototypes" in found:
            answers["prototypes"] = self.sharpened(found["prototypes"], answers["plain"])
        names, self.opinions = list(answers), {name: of for name, of in answers.items() if name != "plain"}
        weights = [self.hp.weight if name == "prototypes" else 1.0 for name in names]
        stages = dict(zip(names, running_means(list(answers.values()), weights)))
        far = total_variation(answers["plain"], answers["restyled"]) if "restyled" in answers else None
        judged = self.stream(stages[names[-1]], far)
        margin = self.hp.margin * (1 - judged.kappa).unsqueeze(1) if self.hp.margin else 0.0
        last = prefer(judged.posterior, found["plain"], margin)
        stages |= {"frequencies": judged.corrected, "neighbours": judged.posterior, "too close": last}
        self.note(stages, judged)
        self.fetched = last, found["plain"]
        return send(last, plain.device)

    def ask_prototypes(self, supports: Supports, seen: Seen) -> Tensor:
        """Return the prototypes' scores. The batch joins the supports."""
        supports.add(seen.features, seen.plain)
        return F.normalize(seen.features) @ supports.prototypes().T

    def sharpened(self, scores: Tensor, plain: Tensor) -> Tensor:
        """Scale the prototypes' scores to the mean entropy of the trained model's answers."""
        window = max(self.hp.window, len(scores))
        self.scores = torch.cat([self.scores, scores])[-window:]
        self.entropies = torch.cat([self.entropies, entropy(plain)])[-window:]
        self.sharpness = sharpen(self.scores, float(self.entropies.mean()), self.sharpness)
        return scores * self.sharpness

    def note(self, stages: dict[str, Tensor], judged: Judged) -> None:
        """Keep facts for `diagnosis`: ρ and κ, the prior in use, and how many classes each step changed."""
        classes = torch.stack(list(stages.values())).argmax(2)
        for name, n in zip(list(stages)[1:], (classes[1:] != classes[:-1]).sum(1).tolist()):
            self.changed[name] = self.changed.get(name, 0) + n
        self.prior = judged.prior
        self.history.append((self.seen, float(judged.rho[-1]), float(judged.kappa[-1])))

    def diagnosis(self) -> dict[str, Any]:
        """Describe the stream so far in plain values."""
        return {
            "images": self.seen,
            "rho": self.stream.rho,
            "kappa": self.stream.kappa,
            "prior": dict(zip(self.model.classes, self.prior.tolist())),
            "changed": dict(self.changed),  # step -> images with another class after it
            "new domains": list(self.changes),  # images seen at each noticed change of domain
            "left out": dict(self.left_out),
            "history": [{"images": n, "rho": rho, "kappa": kappa} for n, rho, kappa in self.history],
        }

    def network(self) -> Trained:
        raise InputError("itta+ averages several answers, so no one network gives them: choose another adapter.")

    @torch.no_grad()
    def frozen(self) -> nn.Module:
        """Return the averaged answers and the correction as they are now. The neighbours cannot be frozen."""
        if self.seen == 0:
            return Frozen(self.name, self.model)
        prototypes = None if self.supports is None else self.sharpness * self.supports.prototypes()
        network = Frozen(self.name, self.model)
        if self.style is not None:
            shapes = self.model.backbone.block_shapes(self.model.image_size)
            network = Frozen(self.name, self.model, self.style.modules(shapes, self.hp.prior, self.hp.strength))
        return Combined(network, self.temperature, prototypes, self.hp.weight, self.stream.bias(), self.hp.margin)

    def reset(self) -> None:
        like, classes = next(self.model.parameters()), self.model.n_classes
        self.seen, self.sharpness = 0, 1.0
        self.scores, self.entropies = torch.zeros(0, classes, dtype=like.dtype), torch.zeros(0, dtype=like.dtype)
        for part in self.parts().values():
            part.reset()
        self.changed: dict[str, int] = {}  # step -> images with another class after it
        self.changes: deque[int] = deque(maxlen=HISTORY)  # images seen at each noticed change of domain
        self.prior = torch.full((classes,), 1 / classes)
        self.history.clear()

    def state(self) -> dict[str, Tensor]:
        """Return everything that later answers depend on; the facts for `diagnosis` are not part of it."""
        found = {"scores": self.scores.clone(), "entropies": self.entropies.clone()}
        for name, part in self.parts().items():
            found |= with_prefix(f"{name}.", part.state_dict())
        return {**found, "numbers": torch.tensor([self.seen, self.sharpness], dtype=torch.double)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.scores, self.entropies = state["scores"].clone(), state["entropies"].clone()
        for name, part in self.parts().items():
            part.load_state_dict(without_prefix(f"{name}.", state))
        self.seen, self.sharpness = int(state["numbers"][0]), float(state["numbers"][1])

    def parts(self) -> dict[str, Diagnosis | TargetStyle | Supports]:
        found = {"stream": self.stream, "style": self.style, "supports": self.supports}
        return {name: part for name, part in found.items() if part is not None}
