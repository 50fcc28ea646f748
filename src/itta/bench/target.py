"""Evaluate a trained model on a target domain, with and without adaptation."""

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from itta import records
from itta.adapters import Adapter, adapt
from itta.algorithms import Algorithm
from itta.bench.checkpoint import read_description
from itta.bench.evaluate import Outcome, evaluate
from itta.data import load_dataset
from itta.data.dataset import Images, target_indices
from itta.data.folder import load_target
from itta.data.published import MNIST_NAMES, locate
from itta.errors import InputError, unknown
from itta.records import Record, replace_text
from itta.report.plots import plot_stream
from itta.report.tables import percent
from itta.trial import Trial

Report = Callable[[str, int, int], None]


def quiet(name: str, done: int, total: int) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Target:
    name: str
    images: Images
    indices: np.ndarray
    labelled: bool


def find_target(
    model: Path, data: str, domain: str | None, data_root: Path | None = None, cache: bool = True
) -> Target:
    """A domain of data known by name, root/domain/class/image with a domain named, root/class/image, or a manifest."""
    description = read_description(model)
    size, classes = description["image_size"], tuple(description["classes"])
    if data in ("emoji", *MNIST_NAMES):
        trial = trial_of(model)
        dataset = load_dataset(data, image_size=size, strict=trial.strict, root=data_root, seed=trial.trial_seed)
        if dataset.classes != classes:
            raise InputError(f"the model knows the classes {', '.join(classes)}, not those of the {data} data.")
        name = domain or next(iter(trial.test_domains), None)
        if name is None:
            raise InputError(f"name the target with --domain. Choices: {', '.join(dataset.domains)}.")
        indices = target_indices(dataset, name, trial.trial_seed) if name in dataset.domains else np.arange(0)
        return Target(name, dataset.domain(name), indices, True)
    root = locate(data, data_root)
    if domain and root.is_dir() and not (root / domain).is_dir():
        raise unknown("domain", domain, sorted(f.name for f in root.iterdir() if f.is_dir()))
    images = load_target(root, classes, image_size=size, domain=domain, cache=cache)
    return Target(domain or root.resolve().stem, images, np.arange(len(images)), bool((images.labels >= 0).all()))


def compare(
    model: Algorithm, target: Target, adapter: Adapter, batch_size: int, seed: int, report: Report = quiet
) -> tuple[Outcome, Outcome]:
    """The same stream through the model as trained and through the adapter."""
    plain = adapt(model, "source")

    def run(a: Adapter) -> Outcome:
        def tell(done: int, total: int) -> None:
            report(a.name, done, total)

        return evaluate(a, target.images, target.indices, batch_size, seed, tell)

    return run(plain), run(adapter)


def summarise(target: Target, adapter: Adapter, before: Outcome, after: Outcome) -> dict[str, Any]:
    """Accuracy where there are labels, and always how many answers changed."""
    rows: dict[str, list[str]] = {"source": [], adapter.name: []}
    columns: list[str] = []
    if target.labelled:
        columns = ["accuracy %", "first half %", "second half %"]
        for name, outcome in (("source", before), (adapter.name, after)):
            halves = np.array_split(outcome.correct, 2)
            rows[name] = [percent(outcome.accuracy), *(percent(half.mean()) if len(half) else "-" for half in halves)]
    changed = float((before.predictions != after.predictions).mean())
    rows["source"].append("-")
    rows[adapter.name].append(percent(changed))
    result: dict[str, Any] = {
        "target": target.name,
        "images": len(before.predictions),
        "adapter": adapter.name,
        "settings": adapter.describe(),
        "changed": changed,
        "columns": [*columns, "answers changed %"],
        "rows": rows,
    }
    if target.labelled:
        result |= {"accuracy_before": before.accuracy, "accuracy": after.accuracy}
    return result


def write_comparison(
    out: Path, model: Path, target: Target, adapter: Adapter, outcomes: tuple[Outcome, Outcome]
) -> list[Path]:
    """Predictions in the stream's order; with labels also the records and the accuracy along the stream."""
    out.mkdir(parents=True, exist_ok=True)
    before, after = outcomes
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["image", "label", "before", "after"])
    classes = adapter.model.task.classes
    for i, y, b, a in zip(after.indices, after.labels, before.predictions, after.predictions):
        writer.writerow([target.images.names[i], classes[y] if y >= 0 else "", classes[b], classes[a]])
    replace_text(out / "predictions.csv", text.getvalue())
    files = [out / "predictions.csv"]
    if target.labelled:
        for a, outcome in zip((adapt(adapter.model, "source"), adapter), outcomes):
            records.append(out / "records.jsonl", record_of(model, a, target, outcome))
        window = max(1, min(200, len(before.correct) // 4))
        curves = {"source": [before.running_accuracy(window)], adapter.name: [after.running_accuracy(window)]}
        files += [out / "records.jsonl", plot_stream(out / "stream.png", curves, window, f"{target.name}: one pass")]
    return files


def trial_of(model: Path) -> Trial:
    try:
        return Trial.from_json(read_description(model)["about"]["trial"])
    except (KeyError, TypeError) as error:
        raise InputError(
            f"{model / 'model.json'} does not say which trial made the model ({error!r}): train it with itta train."
        ) from error


def record_of(model: Path, adapter: Adapter, target: Target, outcome: Outcome) -> Record:
    description = read_description(model)
    return Record(
        trial_of(model),
        description["about"]["steps"],
        adapter.name,
        {target.name: {"all": outcome.accuracy}},
        description["hparams"],
        adapter.describe(),
    )
