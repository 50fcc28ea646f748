"""Keep the outputs of a network along a stream, so that methods that only read answers or features run in seconds.

A kept stream holds the trained model's logits, its features, and the answers that itta+ averages, image by image.
`judge` computes itta+'s answers for any rules of its diagnosis. `features_model` is a model with those features as its
images: T3A, LAME and the guard around them answer for it as they do for the model itself. Tests compare both with the
real methods.
"""

from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from itta.adapters import Adapter, adapt
from itta.adapters.diagnosis import Diagnosis, Rules
from itta.adapters.frequencies import UNKNOWN, Frequencies
from itta.adapters.itta_plus import ANSWERS, ITTAPlus, Seen
from itta.adapters.target_style import styles_of
from itta.algorithms import Algorithm, Task, find_algorithm
from itta.data.dataset import Images
from itta.data.loaders import stream
from itta.functional.entropy import log_mean_probability, total_variation
from itta.functional.preference import prefer
from itta.hparams import default
from itta.nn.backbone import Backbone

Kept = dict[str, Tensor]
"""labels [N], plain [N, C], features [N, d], the answers' logits by name, [N, C], and the images before which itta+ has
noticed a new domain, "new domains"."""


class Looked(NamedTuple):
    """The outputs of the network for some images, in no order."""

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
        found.append((y, maps, styles_of(maps), features, trained.classify(features)))
    return Looked({int(i): n for n, i in enumerate(np.unique(indices))}, *(torch.cat(part) for part in zip(*found)))


@torch.no_grad()
def keep(trained: Algorithm, looked: Looked, order: np.ndarray, batch: int) -> Kept:
    """Compute the answers that itta+ averages along a stream."""
    adapter = itta_plus(trained)
    rows = torch.tensor([looked.row[int(i)] for i in order])
    kept = {"labels": looked.labels[rows], "plain": looked.plain[rows], "features": looked.features[rows]}
    kept["plain answer"] = kept["plain"] / adapter.temperature
    kept["temperature"] = torch.tensor(adapter.temperature)
    kept["new domains"] = torch.zeros(0, dtype=torch.long)
    if adapter.style is not None:
        kept["new domains"], thetas = thetas_along(adapter, looked.styles[rows], batch)
        restyled = []
        for part, theta in zip(rows.split(64), thetas.split(64)):
            a, b = theta.unsqueeze(-1).unsqueeze(-1).unbind(1)  # [n, C, 1, 1]
            features = trained.backbone.resume(adapter.style.first, looked.maps[part] * a + b)
            restyled.append(trained.classify(features) / adapter.temperature)
        kept["restyled answer"] = torch.cat(restyled)
    if adapter.supports is not None:
        kept["prototypes answer"] = ask_prototypes(adapter, kept, batch)
        kept["prototypes answer at 1"] = ask_prototypes(itta_plus(trained, temperature=False), kept, batch)
    return kept


def itta_plus(trained: Algorithm, **settings: bool) -> ITTAPlus:
    adapter = adapt(trained, "itta+", guard=False, **settings)
    assert isinstance(adapter, ITTAPlus)
    return adapter


def thetas_along(adapter: ITTAPlus, styles: Tensor, batch: int) -> tuple[Tensor, Tensor]:
    """Return the images before which a new domain is noticed, and f_Θ at each image, [N, 2, C].

    With f_Θ known for every image, the network can run 64 images at a time, whatever the batch.
    """
    news, thetas, target = [], [], adapter.style
    assert target is not None
    for at, part in zip(range(0, len(styles), batch), styles.split(batch)):
        if target.change.notice(part, adapter.hp.change):
            target.forget()
            news.append(at)
        target.add(target.first, part, target.fade(len(part), adapter.hp.memory))
        thetas += [torch.stack(adapter.theta(target.first))] * len(part)
    return torch.tensor(news, dtype=torch.long), torch.stack(thetas)


def ask_prototypes(adapter: ITTAPlus, kept: Kept, batch: int) -> Tensor:
    """Return the prototypes' answers along a stream, [N, C]."""
    news, answers = kept["new domains"].tolist(), []
    assert adapter.supports is not None
    for at in range(0, len(kept["plain"]), batch):
        if at in news:
            adapter.forget()
        part = slice(at, at + batch)
        seen = Seen(kept["plain"][part], None, kept["features"][part])
        scores = adapter.ask_prototypes(adapter.supports, seen)
        answers.append(adapter.sharpened(scores, seen.plain / adapter.temperature))
    return torch.cat(answers)


class Variant(NamedTuple):
    """A setting of itta+ that needs no new pass of the network."""

    rules: Rules = Rules()
    answers: tuple[str, ...] = ANSWERS
    weight: float = default(ITTAPlus.Hparams).weight
    margin: float = default(ITTAPlus.Hparams).margin
    temperature: bool = True
    notice: bool = True  # changes of domain, in the diagnosis


def average(kept: Kept, variant: Variant) -> Tensor:
    """Return the mean of the answers along a kept stream, log-probabilities [N, C]."""
    found = {name: kept[f"{name} answer"] for name in variant.answers if f"{name} answer" in kept}
    if not variant.temperature:
        found = {name: logits * kept["temperature"] for name, logits in found.items()}
        if "prototypes" in found:
            found["prototypes"] = kept["prototypes answer at 1"]
    weights = [variant.weight if name == "prototypes" and len(found) > 1 else 1.0 for name in found]
    return log_mean_probability(list(found.values()), weights)


def distances(kept: Kept, variant: Variant) -> Tensor | None:
    """Return the distances between the plain and the restyled answers along a kept stream, [N]."""
    if "restyled" not in variant.answers or "restyled answer" not in kept:
        return None
    factor = 1.0 if variant.temperature else kept["temperature"]
    return total_variation(kept["plain answer"] * factor, kept["restyled answer"] * factor)


def judge(kept: Kept, variant: Variant, known: dict[str, Tensor] | None, batch: int = 16) -> Tensor:
    """Return itta+'s answers along a kept stream, log-probabilities [N, C]."""
    return preferred(kept, variant.margin, *diagnose(kept, variant, known, batch))


def preferred(kept: Kept, margin: float, posterior: Tensor, kappa: Tensor) -> Tensor:
    """Return the answers of a diagnosis, [N, C], with the preference for the trained model's classes."""
    return prefer(posterior, kept["plain"], margin * (1 - kappa).unsqueeze(1))


def diagnose(
    kept: Kept,
    variant: Variant,
    known: dict[str, Tensor] | None,
    batch: int = 16,
    frequencies: Frequencies = UNKNOWN,
) -> tuple[Tensor, Tensor]:
    """Return the diagnosis' answers along a kept stream, log-probabilities [N, C], and κ, [N]."""
    averaged, far = average(kept, variant), distances(kept, variant)
    diagnosis, answers, kappas = Diagnosis(averaged.shape[1], variant.rules, known, frequencies), [], []
    news = kept["new domains"].tolist() if variant.notice else []
    starts = sorted({0, *news} if variant.rules.ordered else {0, *news, *range(0, len(averaged), batch)})
    for at, end in zip(starts, [*starts[1:], len(averaged)]):
        if at in news:
            diagnosis.forget()
        judged = diagnosis(averaged[at:end], None if far is None else far[at:end])
        answers.append(judged.posterior)
        kappas.append(judged.kappa)
    return torch.cat(answers), torch.cat(kappas)


def points(answers: Tensor, kept: Kept) -> float:
    """Return the points gained over the trained model."""
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
