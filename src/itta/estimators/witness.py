"""A witness beside an adapter: it keeps the answers to all images, from which accuracy can be estimated."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from itta.adapters.base import Adapter
from itta.adapters.itta_plus import ITTAPlus
from itta.errors import InputError
from itta.estimators.base import Evidence
from itta.estimators.neighbourhood import Neighbourhood
from itta.hparams import default
from itta.models.early_reader import EarlyFeatures, EarlyReader
from itta.models.trained import Trained
from itta.nn.backbone import keep

EARLY = "early"  # the early reader's scores among the opinions; it is no answer, but a sign
Noted = tuple[Tensor, Tensor, dict[str, Tensor]]  # answers [N, C] before, classes [N] after, opinions [N, C] by name


class Witness(Adapter):
    """Answers as the adapter inside does, and notes the answers.

    itta+ computes the trained model's answers and two more opinions anyway. Beside any other adapter that changes
    answers, the witness runs itta+ itself, which takes one more pass.

    With ``most``, it keeps at most so many answers, those to every second image, every fourth, and so on.
    """

    name = "witness"
    paper = "none: our own"

    def __init__(
        self, trained: Trained, inner: Adapter, most: int | None = None, reader: EarlyReader | None = None
    ) -> None:
        torch.nn.Module.__init__(self)
        self.inner, self.model = inner, inner.model
        self.name, self.predicts, self.needs = inner.name, inner.predicts, inner.needs  # type: ignore[misc]
        knows = isinstance(getattr(inner, "inner", inner), ITTAPlus)
        self.needs_referee = not knows and inner.name != "source"
        self.referee = ITTAPlus(trained, default(ITTAPlus.Hparams)) if self.needs_referee else None
        confusions = trained.confusions or {}
        self.temperature = float(confusions.get("temperature", 1.0))
        self.confusions = confusions.get("mean")
        self.most = most
        self.reader = reader or (None if trained.stand_ins is None else trained.stand_ins.reader)
        self.early = EarlyFeatures(self.model.backbone)
        self.forget()

    def forget(self) -> None:
        """Start to keep answers anew."""
        self.notes: list[Noted] = []
        self.neighbourhood = Neighbourhood()
        self.kept, self.every, self.skip = 0, 1, 0  # answers; one of how many images; images before the next one

    @property
    def asked(self) -> Adapter:
        """The adapter whose opinions are noted: the one inside, or itta+ beside it."""
        return getattr(self.inner, "inner", self.inner) if self.referee is None else self.referee

    def forward(self, x: Tensor) -> Tensor:
        asked = self.asked
        asked.reference, asked.opinions, asked.embeddings = None, {}, None
        self.early.latest = None
        with self.looking_on(asked):
            logits = self.inner(x)
            if self.referee is not None:
                self.referee(x)
        if self.inner.name == "source":
            self.note(logits, logits, {})
        elif asked.reference is not None:  # a guard may have left the batch to the trained model
            self.note(asked.reference, logits, asked.opinions)
            if asked.embeddings is not None:
                answers = (asked.reference / self.temperature).softmax(1)
                self.neighbourhood.add(asked.embeddings.float(), answers.float())
        return logits

    @contextmanager
    def looking_on(self, asked: Adapter) -> Iterator[None]:
        """See the early features of a batch, if they can be read."""
        if not isinstance(asked, ITTAPlus) or self.reader is None:
            yield
            return
        asked.onlooker = self.early
        try:
            yield
        finally:
            asked.onlooker = keep

    @torch.no_grad()
    def note(self, reference: Tensor, logits: Tensor, opinions: dict[str, Tensor]) -> None:
        """Keep the answers to a batch, on the CPU."""
        before = (reference / self.temperature).softmax(1).float().cpu()
        others = {name: o.softmax(1).float().cpu() for name, o in opinions.items()}
        if self.early.latest is not None and self.reader is not None:
            others[EARLY] = self.reader.scores(self.early.latest)
        self.notes.append(thinned((before, logits.argmax(1).cpu(), others), self.skip, self.every))
        self.skip = (self.skip - len(before)) % self.every
        self.kept += len(self.notes[-1][0])
        if self.most is not None and self.kept > self.most:
            before, after, others = self.all_notes()
            self.skip += self.every * (self.kept % 2)
            self.notes, self.every = [thinned((before, after, others), 0, 2)], 2 * self.every
            self.kept = len(self.notes[0][0])

    def evidence(self) -> Evidence:
        """The answers to all images so far."""
        if not self.notes:
            raise InputError("there are no answers to estimate from: predict some images first.")
        before, after, opinions = self.all_notes()
        early, near = opinions.pop(EARLY, None), self.neighbourhood.support
        return Evidence(before, after, opinions, self.confusions, near, early, self.referee is None)

    def all_notes(self) -> Noted:
        """Join the notes of all batches."""
        before, after, others = zip(*self.notes)
        names = set.intersection(*(set(o) for o in others))
        opinions = {name: torch.cat([o[name] for o in others]) for name in sorted(names, reverse=True)}
        return torch.cat(before), torch.cat(after), opinions

    def reset(self) -> None:
        self.inner.reset()
        if self.referee is not None:
            self.referee.reset()
        self.forget()

    def describe(self) -> dict[str, Any]:
        return self.inner.describe()


def thinned(notes: Noted, start: int, every: int) -> Noted:
    """Keep one of every so many images, from a start on."""
    if every == 1:
        return notes
    before, after, others = notes
    rows = slice(start, None, every)
    return before[rows].clone(), after[rows].clone(), {name: o[rows].clone() for name, o in others.items()}
