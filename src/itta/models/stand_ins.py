"""Stand-in targets: what a model's answers looked like on damaged source images, and how right they were.

A table with a row for each stand-in and a column for each statistic of the answers. It is collected from held-out
source images when a training ends, and an estimator of accuracy learns from it. The first row is the images without
damage.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from itta.errors import InputError
from itta.models.early_reader import EarlyReader

ACCURACY, GAIN, KIND, IMAGES, THRESHOLD = "accuracy", "gain", "kind", "images", "threshold"
READER = ("reader weight", "reader bias")
CHANGED, REFEREE_GAIN = "changed", "referee gain"
MOST_ROWS = 100_000
USUAL_WORTH, USUAL_DEVIATION = 0.25, 0.2  # of a change, on models of two source domains each
AS_MANY = 30  # changed answers that these usual values weigh as much as
VARIANCE_OF_A_CHANGE = 0.5  # of the right answers that one changed answer wins: −1, 0 or 1


@dataclass(frozen=True)
class StandIns:
    columns: Mapping[str, Tensor]  # name -> [R]
    threshold: float  # of the entropy, above which as many held-out images lie as are answered right
    reader: EarlyReader | None = None  # to compare answers with, if the table has that comparison

    @property
    def accuracy(self) -> Tensor:
        """The share of right answers of the trained model, [R]."""
        return self.columns[ACCURACY]

    @property
    def gain(self) -> Tensor:
        """The share of right answers that itta+ won, [R]."""
        return self.columns[GAIN]

    @property
    def kinds(self) -> Tensor:
        """The number of the kind of damage, [R]; rows of one kind are alike."""
        return self.columns[KIND].long()

    @property
    def images(self) -> int:
        """Images of a stand-in, on average."""
        return int(self.columns[IMAGES].mean())

    def worth_of_a_change(self) -> tuple[float, float] | None:
        """How much better a changed answer was than the referee of a guard believed, and the deviation of that.

        A stand-in with c changed answers, of which the referee expected to win b right answers in all (mostly b < 0),
        and which won g, says (g − b)/c. The first number is the mean over all changed answers, the second how far
        stand-ins differ beyond chance (method of moments). Both are drawn towards their usual values, because good
        models have few changed answers. None for the stand-ins of an earlier version.
        """
        if not {CHANGED, REFEREE_GAIN} <= set(self.columns):
            return None
        images = self.columns[IMAGES]
        won, believed, changed = (images * self.columns[name] for name in (GAIN, REFEREE_GAIN, CHANGED))
        total, used = float(changed.sum()), changed >= 1
        mean = (float((won - believed).sum()) + AS_MANY * USUAL_WORTH) / (total + AS_MANY)
        beyond = ((won - believed)[used] / changed[used] - mean) ** 2 - VARIANCE_OF_A_CHANGE / changed[used]
        variance = max(float((changed[used] * beyond).sum()), 0.0) + AS_MANY * USUAL_DEVIATION**2
        return mean, (variance / (total + AS_MANY)) ** 0.5

    def of_clean(self, name: str) -> float:
        """A column's value for the held-out images as they are."""
        return float(self.columns[name][0])

    def check_classes(self, classes: int) -> None:
        """Refuse a reader for another number of classes than the model has."""
        if self.reader is not None and len(self.reader.bias) != classes:
            raise InputError(f"the reader among its stand-ins has {len(self.reader.bias)} classes, not {classes}")

    def tensors(self) -> dict[str, Tensor]:
        """Return the table as tensors by name, for a file."""
        reader = {} if self.reader is None else dict(zip(READER, self.reader))
        return {**self.columns, THRESHOLD: torch.tensor(self.threshold), **reader}

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor]) -> "StandIns":
        """Make a table from the tensors that `tensors` returned."""
        columns = {name: t.float() for name, t in tensors.items() if name not in (THRESHOLD, *READER)}
        if THRESHOLD not in tensors or not {ACCURACY, GAIN, KIND, IMAGES} <= set(columns):
            raise InputError("the stand-ins of the model are incomplete")
        shapes = {tuple(t.shape) for t in columns.values()}
        rows = next(iter(shapes))
        if len(shapes) != 1 or len(rows) != 1 or not 0 < rows[0] <= MOST_ROWS or tensors[THRESHOLD].numel() != 1:
            raise InputError("the stand-ins of the model are no table")
        if not all(bool(torch.isfinite(t).all()) for t in tensors.values()):
            raise InputError("the stand-ins of the model have numbers that are not finite")
        return StandIns(columns, float(tensors[THRESHOLD]), reader_from(tensors))


def reader_from(tensors: Mapping[str, Tensor]) -> EarlyReader | None:
    """Return the reader among the tensors of a table, if there is one."""
    if not set(READER) & set(tensors):
        return None
    weight, bias = (tensors.get(name, torch.zeros(())).float() for name in READER)
    if weight.ndim != 2 or bias.shape != weight.shape[:1]:
        raise InputError("the reader among the stand-ins of the model has a wrong shape")
    return EarlyReader(weight, bias)
