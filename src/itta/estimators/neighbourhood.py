"""Similar images of a target: an answer is more often right if the images nearest to it get the same answer."""

import torch
from torch import Tensor

from itta.functional.answer_statistics import neighbour_support

GROUP = 32  # images among which neighbours are looked for
NEIGHBOURS = 5


class Neighbourhood:
    """Collects features and answers, and computes the support of the neighbours group by group.

    The memory does not grow with the number of images but for one number for each. All groups have the same size,
    because the nearest of many images are nearer than the nearest of few.
    """

    def __init__(self) -> None:
        self.features, self.answers = torch.zeros(0), torch.zeros(0)  # of the last images, [n, d] and [n, C]
        self.waiting = 0  # of these: not in a group yet
        self.found: list[Tensor] = []

    def add(self, features: Tensor, answers: Tensor) -> None:
        """Take in the features [B, d] and the probabilities [B, C] of a batch."""
        known = len(self.features) > 0
        self.features = torch.cat([self.features, features]) if known else features
        self.answers = torch.cat([self.answers, answers]) if known else answers
        self.waiting += len(features)
        while self.waiting >= GROUP:
            end = len(self.features) - self.waiting + GROUP
            self.found.append(self.support(end)[-GROUP:])
            self.waiting -= GROUP
        keep = self.waiting + GROUP
        self.features, self.answers = self.features[-keep:], self.answers[-keep:]

    def support(self, end: int) -> Tensor:
        """The support of the neighbours for the last images before ``end``."""
        z, p = self.features[max(end - GROUP, 0) : end], self.answers[max(end - GROUP, 0) : end]
        return neighbour_support(z, p, p.argmax(1), NEIGHBOURS).float().cpu()

    def supports(self) -> Tensor | None:
        """The support of the neighbours for every image so far, [N]; None for a single image.

        The last images, if they do not fill a group, look for neighbours among those just before them too.
        """
        if len(self.features) < 2:
            return None
        rest = [self.support(len(self.features))[-self.waiting :]] if self.waiting else []
        return torch.cat([*self.found, *rest])
