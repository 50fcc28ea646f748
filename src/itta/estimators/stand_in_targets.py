"""Make stand-in targets from held-out source images, and measure the answers to them.

A stand-in is a set of source images, all damaged in one way, in the style of images of another source domain, or with
unequal classes. To leave out each source domain in turn would be nearer to a real target, but it needs as many
trainings as there are domains.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from itta.adapters.diagnosis import Diagnosis, Rules
from itta.adapters.itta_plus import ITTAPlus
from itta.estimators.base import Evidence
from itta.estimators.statistics import table_row
from itta.estimators.witness import Witness
from itta.functional.answer_statistics import believed_gain, negative_entropy, threshold_for
from itta.functional.corruptions import CORRUPTIONS, recolour
from itta.hparams import default
from itta.models.early_reader import EarlyReader
from itta.models.stand_ins import KIND, REFEREE_GAIN, StandIns
from itta.models.trained import Trained

IMAGES = 64  # of a stand-in
FEWEST = 40  # held-out images from which stand-ins can be made
BATCH = 32
STRENGTHS = (0.5, 0.9)  # of the damage
DAMAGE = (  # chosen on source domains: docs/trust/estimates.md
    *("noise", "speckle", "blur", "darkness", "glare"),
    *("greyness", "inversion", "channel swap", "two tones", "rotation"),
)
RECOLOURED = (1.0, 2.0)  # how far images go to the colours of another source domain, and beyond

Images = Mapping[str, tuple[Tensor, Tensor]]  # source domain -> held-out images [N, 3, H, W] in [0, 1] and labels [N]
Change = Callable[[Tensor, Tensor, torch.Generator], Tensor]  # (images, partners of other domains, generator) -> images


class Recipe(NamedTuple):
    kind: str
    change: Change
    unequal: bool = False  # classes


def recipes() -> Iterator[Recipe]:
    """Every kind of stand-in; the first one is the images as they are."""

    def corrupt(name: str, strength: float) -> Change:
        return lambda x, partner, generator: CORRUPTIONS[name](x, strength, generator)

    def restyle(strength: float) -> Change:
        return lambda x, partner, generator: recolour(x, partner, strength)

    yield Recipe("none", lambda x, partner, generator: x)
    for name in DAMAGE:
        for strength in STRENGTHS:
            yield Recipe(name, corrupt(name, strength))
    for strength in RECOLOURED:
        yield Recipe("recolour", restyle(strength))
    yield Recipe("unequal classes", corrupt("contrast", STRENGTHS[0]), unequal=True)


@torch.no_grad()
def make_stand_ins(model: Trained, images: Images, seed: int = 0, reader: EarlyReader | None = None) -> StandIns | None:
    """Measure the answers to every stand-in; None if there are too few images.

    The model must have its style bank and its temperature already, as far as it gets them.
    """
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.cat(part) for part in zip(*images.values()))
    domain = torch.cat([torch.full((len(labels),), i) for i, (_, labels) in enumerate(images.values())])
    if len(y) < FEWEST:
        return None
    witness = Witness(model, ITTAPlus(model, default(ITTAPlus.Hparams)), reader=reader)
    rows, kinds, threshold = [], dict[str, int](), 0.0
    for number, recipe in enumerate(recipes()):
        chosen = draw_images(y, recipe.unequal, generator)
        partner = draw_partners(domain[chosen], domain, generator)
        evidence = answer_images(witness, recipe.change(x[chosen], x[partner], generator))
        if number == 0:
            right = float((evidence.answers == y[chosen]).float().mean())
            threshold = threshold_for(negative_entropy(evidence.before), right)
        kind = kinds.setdefault(recipe.kind, len(kinds))
        row = table_row(evidence, y[chosen], threshold)
        rows.append({**row, KIND: float(kind), REFEREE_GAIN: ask_referee(model, evidence)})
    return StandIns({name: torch.tensor([row[name] for row in rows]) for name in rows[0]}, threshold, reader)


def draw_images(labels: Tensor, unequal: bool, generator: torch.Generator) -> Tensor:
    """Draw the images of a stand-in; with unequal classes, the k-th class, in random order, k times as rarely."""
    n = len(labels)
    if not unequal:
        return torch.randperm(n, generator=generator)[:IMAGES]
    classes = int(labels.max()) + 1
    weight = 1 / (1 + torch.randperm(classes, generator=generator).float())
    shares = weight[labels] / torch.bincount(labels, minlength=classes)[labels]
    return torch.multinomial(shares, min(IMAGES, n), replacement=True, generator=generator)


def draw_partners(own: Tensor, domain: Tensor, generator: torch.Generator) -> Tensor:
    """Draw an image of another domain for each image; of any domain if there is only one."""
    partner = torch.randint(len(domain), (len(own),), generator=generator)
    for _ in range(20):
        same = domain[partner] == own
        partner[same] = torch.randint(len(domain), (int(same.sum()),), generator=generator)
    return partner


def answer_images(witness: Witness, x: Tensor) -> Evidence:
    """Run itta+ over a stand-in from a fresh start."""
    witness.reset()
    for batch in x.split(BATCH):
        witness(batch)
    return witness.evidence()


def ask_referee(model: Trained, evidence: Evidence) -> float:
    """The gain that the referee of a guard, the trained model with the diagnosis of the stream, believes in."""
    referee = Diagnosis(model.n_classes, Rules(), model.confusions)
    belief = referee(evidence.before.clamp(min=1e-9).log()).posterior.exp()
    return believed_gain(belief, evidence.answers, evidence.after)
