"""Run one stream through a model as trained and through an adapter, and keep the answers of both."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from itta import records
from itta.adapters import Adapter, adapt
from itta.data.loaders import in_stream_order
from itta.data.loaders import stream as read_stream
from itta.data.target import Target
from itta.estimators import Witness
from itta.files import complete
from itta.functional.transfers import pin
from itta.metrics.outcome import Outcome
from itta.models.trained import Trained
from itta.nn.device import describe_device, device_of
from itta.progress import ReportProgress, silent
from itta.records import Record
from itta.run.estimation import Estimation, estimate_values, estimation_of, is_free
from itta.run.evaluate import answer
from itta.run.unfinished_stream import Answers, UnfinishedStream
from itta.settings import StreamSettings
from itta.store.model import Description
from itta.text import csv_writer

MOST_NOTED = 100_000  # images from which accuracy is estimated


@dataclass(frozen=True)
class Comparison:
    """One stream, answered without and with adaptation."""

    target: Target
    adapter: Adapter
    before: Outcome
    after: Outcome
    stream: Mapping[str, Any] = field(default_factory=dict)  # how the images arrived
    estimation: Estimation | None = None  # accuracy without labels, if it took no further pass

    @property
    def changed(self) -> float:
        """The share of images with a changed answer."""
        return float((self.before.predictions != self.after.predictions).mean())


def compare(
    model: Trained,
    target: Target,
    adapter: Adapter,
    stream: StreamSettings,
    report: ReportProgress = silent,
    unfinished: UnfinishedStream | None = None,
) -> Comparison:
    """Run a stream through the model as trained and through the adapter, batch by batch: each image is read once.

    With ``unfinished``, the same call goes on after an interruption; then there is no estimate.
    """
    adapter.reset()
    order = in_stream_order(target.indices, None if target.ordered else stream.seed)
    answers, file = Answers(len(order)), unfinished or UnfinishedStream(None, "")
    file.recover(adapter, answers)
    witness = Witness(model, adapter, most=MOST_NOTED) if is_free(adapter) and answers.done == 0 else None
    both, device = (adapt(model, "source"), witness or adapter), device_of(model)
    began = time.perf_counter()
    for _, x, _ in read_stream(target.images, order[answers.done :], stream.batch_size, None, adapter.needs.batch):
        x, given, seconds = pin(x, device), [], []
        reading = time.perf_counter() - began
        for chosen in both:
            began = time.perf_counter()
            given.append(answer(chosen, x))
            seconds.append(reading + time.perf_counter() - began)
        answers.add(given, seconds)
        file.save_sometimes(adapter, answers)
        report(adapter.name, answers.done, len(order))
        began = time.perf_counter()
    file.finish()
    before, after = answers.outcomes(order, target.images.labels[order])
    arrived = {name: value for name, value in asdict(stream).items() if name != "domain"}
    estimation = estimation_of(witness, model) if witness is not None else None
    return Comparison(target, adapter, before, after, arrived, estimation)


def by_domain(target: Target, outcome: Outcome) -> dict[str, Outcome]:
    """Map each domain of the stream to the answers about its images."""
    owned = target.of_domains(outcome.indices)
    return {domain: outcome.part(own) for domain, own in owned.items() if own.any()}


def write_predictions(path: Path, comparison: Comparison, classes: Sequence[str]) -> None:
    """Write a CSV row for each image, in the order of the stream."""
    before, after, names = comparison.before, comparison.after, comparison.target.images.names
    with complete(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        write = csv_writer(file, ["image", "label", "before", "after"])
        for i, y, b, a in zip(after.indices, after.labels, before.predictions, after.predictions):
            label = classes[y] if y >= 0 else ""
            write({"image": names[i], "label": label, "before": classes[b], "after": classes[a]})


def append_records(path: Path, description: Description, comparison: Comparison) -> list[Record]:
    """Append a record of the model as trained and one of the adapter; needs labels."""
    made = []
    source = adapt(comparison.adapter.model, "source")
    combined = comparison.estimation.combined if comparison.estimation else None
    shares = (combined.before, combined.after) if combined else (None, None)
    both = ((source, comparison.before), (comparison.adapter, comparison.after))
    for (adapter, outcome), share in zip(both, shares):
        record = record_of(description, adapter, comparison.target, outcome, comparison.stream)
        logs = {"seconds_per_image": outcome.seconds / len(outcome.labels)}
        made.append(replace(record, logs=logs, estimate=estimate_values(share)))
        records.append(path, made[-1])
    return made


def record_of(
    description: Description, adapter: Adapter, target: Target, outcome: Outcome, stream: Mapping[str, Any]
) -> Record:
    """Make the record of an adapter on a target."""
    parts = by_domain(target, outcome)
    return Record(
        description.trial,
        description.steps,
        adapter.name,
        {domain: {"all": part.accuracy} for domain, part in parts.items()},
        description.hparams,
        adapter.describe(),
        needs={**asdict(adapter.needs), "predicts": adapter.predicts},
        stream=dict(stream),
        calibration={domain: {"all": part.calibration_error} for domain, part in parts.items()},
        device=describe_device(device_of(adapter.model)),
        precision=adapter.model.backbone.precision,
    )
