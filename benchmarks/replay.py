"""What a network says along a stream, kept, so that whatever only reads answers or features runs again in seconds.

A kept stream holds the trained model's logits, its features, and the answers that itta+ averages, image by image.
`judge` gives itta+'s answers for any rules of its diagnosis. `features_model` is a model whose images are those
features: T3A, LAME and the guard around them answer for it as they do for the model itself. Tests hold both against the
real ones.
"""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from itta.adapters import Adapter, adapt
from itta.adapters.diagnosis import Diagnosis, Rules
from itta.adapters.itta_plus import ITTAPlus, Seen
from itta.algorithms import Algorithm, Task, find_algorithm
from itta.data.dataset import Images
from itta.data.loaders import stream
from itta.functional.entropy import log_mean_probability
from itta.hparams import default
from itta.nn.backbone import Backbone
from itta.nn.style_mixing import style

Kept = dict[str, Tensor]  # labels [N], plain [N, C], features [N, d], and the answers' logits by name, [N, C]


class Looked(NamedTuple):
    """What the network says about some images before they come in an order."""

    row: dict[int, int]  # number of an image -> its row
    labels: Tensor  # [N]
    maps: Tensor  # the first block's output
    styles: Tensor  # [N, 2, C], mean and deviation of its channels
    features: Tensor  # [N, d]
    plain: Tensor  # logits [N, C]


@torch.no_grad()
def look(trained: Algorithm, images: Images, indices: np.ndarray) -> Looked:
    backbone, found = trained.backbone, []
    first = backbone.block_names[0]
    for _, x, y in stream(images, np.unique(indices), 64):
        maps = backbone.until(first, trained.inputs(x))
        features = backbone.resume(first, maps)
        styles = torch.stack([s.flatten(1) for s in style(maps)], 1)
        found.append((y, maps, styles, features, trained.classify(features)))
    return Looked({int(i): n for n, i in enumerate(np.unique(indices))}, *(torch.cat(part) for part in zip(*found)))


@torch.no_grad()
def keep(trained: Algorithm, looked: Looked, order: np.ndarray, batch: int) -> Kept:
    """What itta+ averages along a stream; f_Θ of every batch is known beforehand, so the network runs 64 at a time."""
    adapter = adapt(trained, "itta+", guard=False)
    assert isinstance(adapter, ITTAPlus)
    rows = torch.tensor([looked.row[int(i)] for i in order])
    kept = {"labels": looked.labels[rows], "plain": looked.plain[rows], "features": looked.features[rows]}
    kept["plain answer"] = kept["plain"] / adapter.temperature
    if adapter.source:
        (block,) = adapter.source
        thetas = []
        for part in rows.split(batch):
            fading = (1 - 1 / adapter.hp.memory) ** len(part)
            adapter.weight = fading * adapter.weight + len(part)
            adapter.styles[block] = fading * adapter.styles[block] + looked.styles[part].sum(0)
            thetas += [torch.stack(adapter.theta(block))] * len(part)
        restyled = []
        for part, theta in zip(rows.split(64), torch.stack(thetas).split(64)):
            a, b = theta.unsqueeze(-1).unsqueeze(-1).unbind(1)  # [n, C, 1, 1]
            features = trained.backbone.resume(block, looked.maps[part] * a + b)
            restyled.append(trained.classify(features) / adapter.temperature)
        kept["restyled answer"] = torch.cat(restyled)
    if adapter.supports is not None:
        parts = zip(kept["plain"].split(batch), kept["features"].split(batch))
        answers = [adapter.ask_prototypes(adapter.supports, Seen(plain, None, z)) for plain, z in parts]
        kept["prototypes answer"] = torch.cat(answers)
    return kept


def judge(
    kept: Kept,
    rules: Rules,
    confusions: Tensor | None,
    answers: Sequence[str] = ("plain", "restyled", "prototypes"),
) -> Tensor:
    """itta+'s answers along a kept stream, log-probabilities [N, C]."""
    found = [kept[f"{name} answer"] for name in answers if f"{name} answer" in kept]
    return Diagnosis(found[0].shape[1], rules, confusions)(log_mean_probability(found)).posterior


def points(answers: Tensor, kept: Kept) -> float:
    """Points gained over the trained model."""
    right, before = ((of.argmax(1) == kept["labels"]).double().mean() for of in (answers, kept["plain"]))
    return 100 * float(right - before)


class Given(Backbone):
    """Features, laid out as images, to features."""

    block_names: ClassVar[tuple[str, ...]] = ("given", "same")

    def __init__(self, dim: int) -> None:
        super().__init__(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
        self.dim, self.given, self.same = dim, nn.Identity(), nn.Identity()
        self.unused = nn.Parameter(torch.zeros(()))

    def stem(self, x: Tensor) -> Tensor:
        return x

    def pool(self, z: Tensor) -> Tensor:
        return z.flatten(1)[:, : self.dim]


def features_model(trained: Algorithm) -> Algorithm:
    """A model with the same head, and the same knowledge of its answers, whose images are features."""
    dim = trained.backbone.dim
    task = Task(trained.task.classes, trained.task.domains, trained.task.image_size, lambda: Given(dim))
    cls = find_algorithm("erm")
    model = cls(task, default(cls.Hparams))
    model.head.load_state_dict(trained.head.state_dict())
    model.confusions = trained.confusions
    return model.eval()


def as_images(features: Tensor) -> Tensor:
    """Features [N, d] laid out as [N, 3, w, 1]."""
    width = -(-features.shape[1] // 3)
    padded = torch.nn.functional.pad(features, (0, 3 * width - features.shape[1]))
    return padded.view(len(features), 3, width, 1)


def run(adapter: Adapter, features: Tensor, batch: int) -> Tensor:
    """An adapter of a `features_model` along a kept stream, from a fresh start."""
    adapter.reset()
    return torch.cat([adapter(x) for x in as_images(features).split(batch)])
