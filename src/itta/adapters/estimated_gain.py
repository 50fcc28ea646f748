"""The gain of an adapter, estimated without labels from numbers that a guard has anyway.

Our own, after the estimate of `itta.estimators`. The referee of the guard believes in a gain, mostly below zero: it
is nearly the trained model, which prefers its own answers. On the stand-in targets of the model, each changed answer
was better than believed by k, give or take s. So an adapter whose c changed answers the referee expects to win b right
answers has the estimated gain b + k·c.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from itta.models.stand_ins import VARIANCE_OF_A_CHANGE, StandIns

MEMORY = 256  # images over which changes are counted
LEAST = 20  # changed answers, before anything is said


class Tally:
    """Fading sums over the latest images: changed answers, and the right answers that the referee expects to win.

    The chance of a loss is Φ(−(b + k·c)/σ) with σ² = (s·c)² + v·Σw²: s is the deviation of k between stand-ins, v the
    variance of one changed answer, and w is its weight in the sums.
    """

    def __init__(self, known: StandIns | None, sums: Tensor | None = None) -> None:
        self.worth = None if known is None else known.worth_of_a_change()  # k and s
        self.sums = torch.zeros(3, dtype=torch.double) if sums is None else sums.clone()  # c, Σw², b

    def add(self, logits: Tensor, reference: Tensor, referee: Tensor) -> None:
        """Take in the adapter's answers to a batch, the trained model's and the referee's, logits [B, C] each."""
        q = referee.double().softmax(1)
        own, trained = (q.gather(1, of.argmax(1, keepdim=True))[:, 0] for of in (logits, reference))
        changed = float((logits.argmax(1) != reference.argmax(1)).sum())
        kept = (1 - 1 / MEMORY) ** len(q)
        fading = self.sums.new_tensor([kept, kept**2, kept])
        self.sums = fading * self.sums + self.sums.new_tensor([changed, changed, float((own - trained).sum())])

    def clear(self) -> None:
        self.sums = torch.zeros_like(self.sums)

    @property
    def chance_of_loss(self) -> float:
        """The probability that the gain is below zero; 0 while too little is known.

        >>> tally = Tally(None)
        >>> tally.worth, tally.sums = (0.25, 0.0), torch.tensor([50.0, 50.0, -25.0])  # each change loses 0.5 − 0.25
        >>> round(tally.chance_of_loss, 3)
        0.994
        """
        changed, squares, believed = self.sums.tolist()
        if self.worth is None or changed < LEAST:
            return 0.0
        worth, deviation = self.worth
        sigma = math.hypot(deviation * changed, math.sqrt(VARIANCE_OF_A_CHANGE * squares))
        return 0.5 * math.erfc((believed + worth * changed) / sigma / math.sqrt(2))

    def tensors(self) -> Mapping[str, Tensor]:
        return {"sums": self.sums.clone()}
