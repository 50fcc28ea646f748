"""BN adaptation. Improving robustness against common corruptions by covariate shift adaptation.
Schneider, Rusak, Eck, Bringmann, Brendel, Bethge, NeurIPS 2020. https://arxiv.org/abs/2006.16971

It is also known as AdaBN (Li et al., https://arxiv.org/abs/1603.04779). With ``mode=batch``, the batch's statistics
alone, it is prediction-time batch normalisation (Nado et al., https://arxiv.org/abs/2006.10963). The batch's variance
has the divisor n, not n − 1, so that every mixture with share 1 equals ``mode=batch``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from itta.adapters.base import Adapter, Needs
from itta.errors import InputError
from itta.hparams import hp
from itta.models.trained import Trained
from itta.nn.batch_norm import mix_statistics


@dataclass(frozen=True)
class Hparams:
    mode: Literal["batch", "alpha", "prior", "ema"] = hp(
        "prior",
        "share a of the batch in the statistics. batch: 1; alpha: alpha; prior: n/(N + n) for n images; "
        "ema: momentum, and the mixture is kept for the next batch",
    )
    alpha: float = hp(0.1, "share a, for mode=alpha")
    prior: float = hp(16.0, "N, for mode=prior: the number of images that the training statistics count as")
    momentum: float = hp(0.1, "share a, for mode=ema")


class BNAdapt(Adapter):
    """Each batch normalisation uses (μ, v) = (1 − a)·(μ_s, v_s) + a·(μ_batch, v_batch), without gradients.

    μ_s and v_s are the statistics of training. With mode=ema they are updated after each batch: μ_s ← μ, v_s ← v.
    """

    name = "bn_adapt"
    paper = (
        "Schneider et al., Improving robustness against common corruptions by covariate shift adaptation, NeurIPS 2020"
    )
    Hparams = Hparams
    needs = Needs(batch_norm=True, changes="statistics of batch normalisation")
    predicts = "after"

    def __init__(self, trained: Trained, hp: Any) -> None:
        super().__init__(trained, hp)
        for name in ("alpha", "momentum"):
            if not 0 <= getattr(hp, name) <= 1:
                raise InputError(f"{name} must be between 0 and 1, got {getattr(hp, name)}.")
        if not hp.prior > 0:
            raise InputError(
                f"prior must be above 0, got {hp.prior}: to use only the batch's statistics set mode=batch."
            )
        self.norms = mix_statistics(self.model.backbone, self.share, track=hp.mode == "ema")
        self.start = self.state()

    def share(self, n: int) -> float:
        """Return a for a batch of n images."""
        shares = {"batch": 1.0, "alpha": self.hp.alpha, "prior": n / (self.hp.prior + n), "ema": self.hp.momentum}
        return shares[self.hp.mode]

    def check(self, x: Tensor) -> None:
        super().check(x)
        if self.hp.mode == "batch" and len(x) == 1:
            raise InputError(
                f"{self.name} with mode=batch needs at least 2 images at a time, got 1: "
                "send larger batches, or set mode=prior."
            )

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        x = self.receive(x)
        return self.model.predict(x)

    def reset(self) -> None:
        self.load_state(self.start)

    def statistics(self) -> dict[str, Tensor]:
        return {f"{name}.{key}": b for name, m in self.norms.items() for key, b in m.norm.named_buffers()}

    def state(self) -> dict[str, Tensor]:
        return {name: b.clone() for name, b in self.statistics().items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        for name, b in self.statistics().items():
            b.copy_(state[name])
