"""Tasks that need no labels: predict the rotation of an image, and find the two views of the same image.

A tensor of views holds the first view of every image, then the second view of every image.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from itta.functional.augment import Augmentation, augment, draw_augmentation
from itta.functional.transfers import send


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Rotate each square image of [B, C, S, S] by its number of quarter turns, [B], which may stay on the host.

    >>> rotate(torch.tensor([[[[1, 2], [3, 4]]]]), torch.tensor([1]))
    tensor([[[[2, 4],
              [1, 3]]]])
    """
    turned = torch.empty_like(x)
    for k in range(4):
        chosen = send((turns == k).nonzero()[:, 0], x.device)
        turned[chosen] = x[chosen].rot90(k, (2, 3))
    return turned


def draw_views(n: int, generator: torch.Generator | None = None) -> Augmentation:
    """Draw two augmentations for each of n images. Without a generator, torch's global one seeds them."""
    if generator is None:
        generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
    return draw_augmentation(2 * n, generator)


def make_views(x: Tensor, drawn: Augmentation) -> Tensor:
    """Return two views of each image, [2B, 3, S, S]."""
    return augment(torch.cat([x, x]), drawn)


def nt_xent(h: Tensor, temperature: float) -> Tensor:
    """Return SimCLR's loss of projections [2B, d]: find an image's other view among all views by cosine / temperature.

    >>> nt_xent(torch.eye(4), temperature=0.5)  # no view is nearer than another: ln 3
    tensor(1.0986)
    """
    u, n = unit(h), len(h) // 2
    itself = torch.eye(2 * n, dtype=torch.bool, device=h.device)
    similarity = (u @ u.T / temperature).masked_fill(itself, -torch.inf)
    other = torch.arange(2 * n, device=h.device).roll(n)
    return F.cross_entropy(similarity, other)


def byol(predicted: Tensor, target: Tensor) -> Tensor:
    """Return BYOL's loss of predictions and targets, [2B, d] each.

    The loss is Σ over both directions of mean(2 − 2 cos(prediction of a view, target of the other)).

    No gradient reaches the targets.

    >>> byol(torch.tensor([[1.0, 0.0], [0.0, 3.0]]), torch.tensor([[0.0, 2.0], [0.0, 2.0]]))
    tensor(2.)
    """
    other = target.detach().roll(len(target) // 2, 0)
    return 2 * (2 - 2 * (unit(predicted) * unit(other)).sum(1)).mean()


def unit(v: Tensor) -> Tensor:
    """Scale vectors to length 1. Zero stays zero and can be differentiated twice."""
    return v * (v.square().sum(1, keepdim=True) + 1e-12).rsqrt()
