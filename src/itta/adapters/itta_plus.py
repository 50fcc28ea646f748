"""ITTA+. Our own: what was left of ITTA's test-time step once each part of it had been measured.

Θ is not learned by gradient but set in closed form: a scale and a shift per channel after the first block, which give
the target's images, taken together, the average style of the source domains. It rests on all images seen so far, so
that one at a time serves as well as many. The prediction is the mean of the trained model's and of the restyled one's,
which counts only as long as it spreads its answers over no fewer classes: a model whose answers fall together is going
wrong, and that can be seen without labels. What was measured, and what did not work: docs/adapt/itta_plus.md.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from itta.adapters.base import Adapter, Needs, check_at_least
from itta.adapters.frozen import Averaged, Frozen
from itta.algorithms.base import Algorithm
from itta.errors import InputError
from itta.functional.entropy import effective_classes, log_mean_probability
from itta.hparams import hp
from itta.nn.affine_stack import AffineStack, channel_shape
from itta.nn.optimizer import with_prefix, without_prefix
from itta.nn.style_mixing import style


@dataclass(frozen=True)
class Hparams:
    strength: float = hp(1.0, "ρ: how far to go from the target's style (0) to the sources' (1)")
    blocks: tuple[str, ...] = hp((), "restyle after these, of the two that the style bank knows; none named: the first")
    prior: float = hp(16.0, "how many images of the average source style the target's running style starts with")
    memory: int = hp(1000, "images over which running means are taken")
    patience: int = hp(32, "images to see before the restyled answers count")
    gate: bool = hp(True, "count them only while they spread over no fewer classes than the trained model's")
    average: bool = hp(True, "average them with the trained model's, instead of taking them alone")


class ITTAPlus(Adapter):
    """f_Θ(z) = a∘z + b, per channel, with a = (σ_S/σ_T)^ρ and b = μ_T + ρ·(μ_S − μ_T) − a∘μ_T,

    (μ, σ) the mean style of the source domains S, and of the target's images so far T. With p and q the softmax of
    f_φ(f_θ(x)) without and with f_Θ, and H(q̄) ≥ H(p̄) for their running means: predict (p + q)/2, else p.

    Both run as one batch from the first f_Θ on.
    """

    name = "itta+"
    paper = "none: our own, after ITTA, Chen et al., CVPR 2023"
    Hparams = Hparams
    needs = Needs(source="style bank", changes="Θ, a scale and a shift per channel after the first block")
    candidates = ({}, {"strength": 0.5})
    predicts = "after"
    guarded = True

    def __init__(self, trained: Algorithm, hp: Any) -> None:
        super().__init__(trained, hp)
        check_at_least(1, hp, "memory")
        check_at_least(0, hp, "prior", "patience")
        self.source = self.source_styles()
        self.first = next(iter(self.source))
        self.seen, self.weight = 0, 0.0  # images: all of them; those that running means still remember
        self.styles: dict[str, Tensor] = {}  # block -> sum of the target's styles, [2, C]
        self.predicted: dict[str, Tensor] = {}  # sum of the predictions without and with f_Θ, [classes]
        self.reset()

    def source_styles(self) -> dict[str, Tensor]:
        """Block -> mean and deviation of its channels, [2, C], on average over the sources."""
        bank, backbone = self.model.style_bank, self.model.backbone
        if bank is None:
            raise InputError(
                "itta+ moves a target's style to that of the sources, and this model carries no style bank: train it "
                "again with this version."
            )
        blocks = sorted(self.hp.blocks or backbone.block_names[:1], key=backbone.index)
        if not set(blocks) <= set(bank.mean):
            raise InputError(f"itta+ can restyle after {' and '.join(bank.mean)}, not after {', '.join(blocks)}.")
        like = next(self.model.parameters())
        return {b: torch.stack([bank.mean[b], bank.std[b]]).to(like).mean(1) for b in blocks}

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        self.check(x)
        n, backbone = len(x), self.model.backbone
        kept = (1 - 1 / self.hp.memory) ** n
        self.seen += n
        self.weight = kept * self.weight + n

        def restyle_second_half(block: str, z: Tensor) -> Tensor:
            return torch.cat([z[:n], self.restyle(block, z[n:], kept)]) if block in self.source else z

        z = backbone.until(self.first, self.model.inputs(x))
        plain, restyled = map(
            self.model.classify, backbone.resume(self.first, torch.cat([z, z]), restyle_second_half).split(n)
        )
        self.reference = plain
        for name, logits in (("plain", plain), ("restyled", restyled)):
            self.predicted[name] = kept * self.predicted[name] + logits.softmax(1).sum(0)
        if not self.trusted():
            return plain
        return log_mean_probability([plain, restyled]) if self.hp.average else restyled

    def restyle(self, block: str, z: Tensor, kept: float) -> Tensor:
        """Learn the target's style from the batch too, and move the batch by what lies between it and the sources'."""
        mean, std = style(z)
        self.styles[block] = kept * self.styles[block] + torch.stack([s.flatten(1).sum(0) for s in (mean, std)])
        a, b = (c.view_as(mean[:1]) for c in self.theta(block))
        return z * a + b

    def theta(self, block: str) -> tuple[Tensor, Tensor]:
        """f_Θ after a block as it is now: a and b, [C] each."""
        prior, rho = self.hp.prior, self.hp.strength
        mean, std = (self.styles[block] + prior * self.source[block]) / (self.weight + prior)
        source_mean, source_std = self.source[block]
        a = (source_std / std) ** rho
        return a, mean + rho * (source_mean - mean) - a * mean

    def trusted(self) -> bool:
        """Whether the restyled answers count."""
        if self.seen < max(self.hp.patience, 1):
            return False
        plain, restyled = (effective_classes(p / p.sum()) for p in self.predicted.values())
        return restyled >= plain or not self.hp.gate

    def network(self) -> Algorithm:
        raise InputError("itta+ answers with the mean of two networks, not with one: choose another adapter.")

    def frozen(self) -> nn.Module:
        if not self.trusted():
            return Frozen(self.name, self.model)
        return (Averaged if self.hp.average else Frozen)(self.name, self.model, self.added_blocks())

    @torch.no_grad()
    def added_blocks(self) -> nn.ModuleDict:
        """f_Θ after each block as it is now."""
        shapes = self.model.backbone.block_shapes(self.model.task.image_size)
        stacks = {block: AffineStack(channel_shape(shapes[block]), depth=1) for block in self.source}
        for block, stack in stacks.items():
            for p, value in zip((stack.weight, stack.bias), self.theta(block)):
                p.data = value.view_as(p).clone()
        return nn.ModuleDict(stacks)

    def reset(self) -> None:
        like = next(iter(self.source.values()))
        self.seen, self.weight = 0, 0.0
        self.styles = {block: torch.zeros_like(s) for block, s in self.source.items()}
        self.predicted = {name: like.new_zeros(self.model.task.n_classes) for name in ("plain", "restyled")}

    def state_dict(self) -> dict[str, Tensor]:
        tensors = with_prefix("styles.", self.styles) | with_prefix("predicted.", self.predicted)
        numbers = torch.tensor([self.seen, self.weight], dtype=torch.double)
        return {**{k: v.clone() for k, v in tensors.items()}, "numbers": numbers}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.styles = {k: v.clone() for k, v in without_prefix("styles.", state).items()}
        self.predicted = {k: v.clone() for k, v in without_prefix("predicted.", state).items()}
        seen, self.weight = state["numbers"].tolist()
        self.seen = int(seen)
