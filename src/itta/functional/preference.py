"""Change a prediction only for a reason: keep the class of a first prediction unless another is clearly likelier."""

import torch
from torch import Tensor


def prefer(log_p: Tensor, first: Tensor, margin: Tensor | float) -> Tensor:
    """Multiply the probability of the class that ``first`` predicts by e^margin; log-probabilities [B, C].

    The class of ``first`` then changes only to a class that is more than e^margin times as probable. The margin is one
    number, or one for each image, [B, 1].

    >>> p, first = torch.tensor([[0.55, 0.45], [0.8, 0.2]]), torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    >>> prefer(p.log(), first, 0.5).argmax(1)
    tensor([1, 0])
    """
    if not isinstance(margin, Tensor) and margin == 0:
        return log_p.log_softmax(1)
    classes = torch.arange(first.shape[1], device=first.device)
    chosen = (first.argmax(1, keepdim=True) == classes).to(log_p)
    return (log_p + (margin.to(log_p) if isinstance(margin, Tensor) else margin) * chosen).log_softmax(1)
