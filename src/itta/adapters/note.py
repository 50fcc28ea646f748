"""NOTE. NOTE: Robust Continual Test-time Adaptation Against Temporal Correlation.
Gong, Jeong, Kim, Kim, Shin, Lee, NeurIPS 2022. https://arxiv.org/abs/2208.05117

This is half of the method. Instance-aware batch normalisation (IABN) is missing: it needs a source model trained with
it. Prediction by running statistics, and learning from a prediction-balanced reservoir (PBRS), run on the model's own
batch normalisation. So do not expect the numbers of the whole method.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from itta.adapters import gradient
from itta.adapters.base import Needs, check_at_least, check_images, check_shares, with_tensors
from itta.adapters.gradient import GradientAdapter
from itta.adapters.scopes import norm_affine
from itta.errors import InputError
from itta.functional.entropy import entropy
from itta.functional.transfers import send
from itta.hparams import hp
from itta.models.trained import Trained
from itta.nn.batch_norm import batch_norms
from itta.nn.optimizer import with_prefix, without_prefix
from itta.nn.robust_norm import learning_statistics, statistics


@dataclass(frozen=True)
class Hparams(gradient.Hparams):
    lr: float = hp(1e-4, "learning rate")
    steps: int = hp(1, "steps per update")
    memory: int = hp(64, "images in the memory")
    every: int = hp(64, "images between two updates")
    bn_momentum: float = hp(0.01, "share of the memory's statistics in the running statistics, at each step")


class NOTE(GradientAdapter):
    """Each image is predicted as ŷ with running statistics, so independently of others, and offered to the memory.

    After every ``every`` images: weights and biases of batch normalisation ← step on mean H(f(memory)) / K, with the
    memory normalised by its own statistics, and running ← (1−m)·running + m·memory's.

    The result does not depend on the batch size.
    """

    name = "note"
    paper = "Gong et al., NOTE: Robust Continual Test-time Adaptation Against Temporal Correlation, NeurIPS 2022"
    Hparams = Hparams
    needs = Needs(batch_norm=True, changes="weights, biases and running statistics of batch normalisation")
    predicts = "before"
    on_host = ("labels", "predicted")

    def scope(self) -> dict[str, nn.Parameter]:
        check_at_least(2, self.hp, "memory", "every")  # the variance of one image may not exist
        check_shares(self.hp, "bn_momentum")
        if self.hp.episodic:
            raise InputError("note cannot run with episodic=True: its updates serve later batches only.")
        for norm in batch_norms(self.model.backbone).values():
            norm.momentum, norm.num_batches_tracked = self.hp.bn_momentum, None
        return norm_affine(self.model)

    def fresh(self) -> dict[str, Tensor]:
        like, size = next(self.model.parameters()), self.model.image_size
        running = {name: value.clone() for name, value in statistics(self.model.backbone, "backbone").items()}
        return {
            **with_prefix("running.", running),
            "images": like.new_zeros(self.hp.memory, 3, size, size),
            "labels": torch.full((self.hp.memory,), -1),  # -1: a free place
            "predicted": torch.zeros(self.model.n_classes, dtype=torch.long),  # predictions of each class
        }

    def check(self, x: Tensor) -> None:
        check_images(x, self.model.image_size)

    def adapt(self, x: Tensor) -> Tensor:
        seen, every = int(self.extra["predicted"].sum()), self.hp.every
        parts = x.tensor_split(tuple(range(every - seen % every, len(x), every)))
        return torch.cat([self.meet(part) for part in parts])

    def meet(self, x: Tensor) -> Tensor:
        """Predict and remember images between two updates, and learn if the last one makes an update due."""
        with torch.no_grad():
            logits = self.run(x)
            for image, label in zip(x, logits.argmax(1).tolist()):
                self.remember(image, label, *torch.rand(2, generator=self.generator).tolist())
        if int(self.extra["predicted"].sum()) % self.hp.every == 0:
            held = (self.extra["labels"] >= 0).nonzero()[:, 0]
            self.learn(self.extra["images"][send(held, x.device)])
        return logits

    def run(self, x: Tensor) -> Tensor:
        return functional_call(self.model, without_prefix("running.", self.extra), (x,))

    def network(self) -> Trained:
        return with_tensors(self.model, without_prefix("running.", self.extra))

    def remember(self, image: Tensor, label: int, keep: float, which: float) -> None:
        """Offer an image to the memory. ``keep`` and ``which`` are uniform draws."""
        self.extra["predicted"][label] += 1
        place = reservoir_place(self.extra["labels"], label, int(self.extra["predicted"][label]), keep, which)
        if place is not None:
            self.extra["images"][place] = image
            self.extra["labels"][place] = label

    def learn(self, images: Tensor) -> None:
        for _ in range(self.hp.steps):
            with learning_statistics(self.model.backbone):
                logits = self.run(images)
            self.step(entropy(logits).mean() / logits.shape[1])


def reservoir_place(labels: Tensor, label: int, predicted: int, keep: float, which: float) -> int | None:
    """Return the place of an image in a prediction-balanced reservoir, or None if it gets none.

    ``label`` is its predicted class, and ``predicted`` the number of predictions of that class so far, with this one.
    The image gets a free place. If there is none and other classes hold the most places, it gets one of theirs. Else,
    with the probability held/predicted of reservoir sampling, it gets a place of its own class. ``keep`` and ``which``
    are uniform draws from [0, 1).

    >>> reservoir_place(torch.tensor([0, 1, 0, -1]), 0, 3, keep=0.0, which=0.0)
    3
    >>> reservoir_place(torch.tensor([0, 1, 0, 0]), 1, 2, keep=0.9, which=0.9)  # the last of class 0
    3
    >>> reservoir_place(torch.tensor([0, 1, 0, 0]), 0, 6, keep=0.6, which=0.0)  # 0.6 is above 3/6: no place
    """
    free = (labels < 0).nonzero()
    if len(free):
        return int(free[0])
    held = labels.bincount(minlength=label + 1)
    if held[label] == held.max():
        if keep >= int(held[label]) / predicted:
            return None
        candidates = labels == label
    else:
        candidates = held[labels] == held.max()
    places = candidates.nonzero()[:, 0]
    return int(places[int(which * len(places))])
