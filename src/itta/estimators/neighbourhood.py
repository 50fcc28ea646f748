"""Similar images of a target: an answer is more often right if the images nearest to it get the same answer."""

import torch
from torch import Tensor

from itta.functional.answer_statistics import neighbour_support

GROUP = 32  # images among which neighbours are looked for
NEIGHBOURS = 5


class Neighbourhood:
    """The mean support that the answers get from similar images, in memory that does not grow.

    Neighbours are looked for in groups of the same size, because the nearest of many images are nearer than the nearest
    of few.
    """

    def __init__(self) -> None:
        self.features, self.answers = torch.zeros(0), torch.zeros(0)  # of the last images, [n, d] and [n, C]
        self.waiting = 0  # of these: not in a group yet
        self.sum, self.images = 0.0, 0  # of the support, over all groups

    def add(self, features: Tensor, answers: Tensor) -> None:
        """Take in the features [B, d] and the probabilities [B, C] of a batch."""
        known = len(self.features) > 0
        self.features = torch.cat([self.features, features]) if known else features
        self.answers = torch.cat([self.answers, answers]) if known else answers
        self.waiting += len(features)
        while self.waiting >= GROUP:
            self.sum += float(self.supports(len(self.features) - self.waiting + GROUP).sum())
            self.images, self.waiting = self.images + GROUP, self.waiting - GROUP
        keep = self.waiting + GROUP
        self.features, self.answers = self.features[-keep:], self.answers[-keep:]

    def supports(self, end: int) -> Tensor:
        """The support of the neighbours for the last images before ``end``, a group at most."""
        z, p = self.features[max(end - GROUP, 0) : end], self.answers[max(end - GROUP, 0) : end]
        return neighbour_support(z, p, p.argmax(1), NEIGHBOURS)

    @property
    def support(self) -> float | None:
        """The mean support over all images so far; None for a single image.

        The last images, if they do not fill a group, look for neighbours among those just before them too.
        """
        if len(self.features) < 2:
            return None
        rest = self.supports(len(self.features))[-self.waiting :] if self.waiting else torch.zeros(0)
        return (self.sum + float(rest.sum())) / (self.images + self.waiting)
