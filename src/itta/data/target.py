"""Evaluate a trained model on a target domain, with and without adaptation."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from itta import records
from itta.adapters import Adapter, adapt
from itta.algorithms import Algorithm
from itta.data import load_dataset
from itta.data.dataset import Images, JoinedImages, target_indices
from itta.data.folder import load_target
from itta.data.published import MNIST_NAMES, locate
from itta.data.streams import Classes, Domains, draw_order
from itta.errors import InputError, unknown
from itta.records import Record, replace_text
from itta.report.plots import plot_stream
from itta.report.tables import percent
from itta.run.evaluate import Outcome, evaluate
from itta.store.model import read_description
from itta.trial import Trial

Report = Callable[[str, int, int], None]


def quiet(name: str, done: int, total: int) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Target:
    """What a model is run on: images of one domain, or of several."""

    name: str
    images: Images
    indices: np.ndarray  # those to predict, in the order in which they arrive if ``ordered``
    labelled: bool
    ordered: bool = False

    def of_domains(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Which of the given images are whose: domain -> [N] of yes and no."""
        if not isinstance(self.images, JoinedImages):
            return {self.name: np.ones(len(indices), dtype=bool)}
        bounds = zip(self.images.parts, self.images.starts, self.images.starts[1:])
        return {name: (indices >= low) & (indices < high) for name, low, high in bounds}


def find_stream(
    model: Path,
    data: str,
    names: Sequence[str] = (),
    classes: Classes = "iid",
    domains: Domains = "in_turn",
    seed: int = 0,
    concentration: float = 0.1,
    data_root: Path | None = None,
    cache: bool = True,
) -> Target:
    """The images of one or several domains, in the order in which they are to arrive."""
    targets = [find_target(model, data, name, data_root, cache) for name in names or (None,)]
    if len(targets) == 1 and classes == "iid":
        return targets[0]  # put in order as it is read
    labelled = all(t.labelled for t in targets)
    if not labelled and classes != "iid":
        raise InputError(f"{data} has no labels, so its images cannot arrive by class: leave --order at iid.")
    images = targets[0].images if len(targets) == 1 else JoinedImages({t.name: t.images for t in targets})
    order = draw_order({t.name: t.images.labels[t.indices] for t in targets}, classes, domains, seed, concentration)
    starts = images.starts if isinstance(images, JoinedImages) else np.zeros(1, dtype=np.int64)
    indices = np.array([starts[d] + targets[d].indices[i] for d, i in zip(order.domain, order.index)], dtype=np.int64)
    return Target(" + ".join(t.name for t in targets), images, indices, labelled, ordered=True)


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

        return evaluate(a, target.images, target.indices, batch_size, None if target.ordered else seed, tell)

    return run(plain), run(adapter)


def summarise(target: Target, adapter: Adapter, before: Outcome, after: Outcome) -> dict[str, Any]:
    """Accuracy where there are labels, and always how many answers changed."""
    rows: dict[str, list[str]] = {"source": [], adapter.name: []}
    columns: list[str] = []
    if target.labelled:
        columns = ["accuracy %", "first half %", "second half %"]
        if len(by_domain(target, before)) > 1:
            columns += [f"{domain} %" for domain in by_domain(target, before)]
        for name, outcome in (("source", before), (adapter.name, after)):
            halves = np.array_split(outcome.correct, 2)
            rows[name] = [percent(outcome.accuracy), *(percent(half.mean()) if len(half) else "-" for half in halves)]
            if len(by_domain(target, outcome)) > 1:
                rows[name] += [percent(part.accuracy) for part in by_domain(target, outcome).values()]
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


def by_domain(target: Target, outcome: Outcome) -> dict[str, Outcome]:
    """What was said about each domain of the stream."""
    owned = target.of_domains(outcome.indices)
    return {domain: outcome.part(own) for domain, own in owned.items() if own.any()}


def write_comparison(
    out: Path,
    model: Path,
    target: Target,
    adapter: Adapter,
    outcomes: tuple[Outcome, Outcome],
    stream: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Predictions in the stream's order; with labels also the records and the accuracy along the stream."""
    out.mkdir(parents=True, exist_ok=True)
    before, after = outcomes
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["image", "label", "before", "after"])
    classes, names = adapter.model.task.classes, target.images.names
    for i, y, b, a in zip(after.indices, after.labels, before.predictions, after.predictions):
        writer.writerow([names[i], classes[y] if y >= 0 else "", classes[b], classes[a]])
    replace_text(out / "predictions.csv", text.getvalue())
    files = [out / "predictions.csv"]
    if target.labelled:
        for a, outcome in zip((adapt(adapter.model, "source"), adapter), outcomes):
            cost = {"seconds_per_image": outcome.seconds / len(outcome.labels)}
            records.append(out / "records.jsonl", replace(record_of(model, a, target, outcome, stream), logs=cost))
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


def record_of(
    model: Path, adapter: Adapter, target: Target, outcome: Outcome, stream: Mapping[str, Any] | None = None
) -> Record:
    description, parts = read_description(model), by_domain(target, outcome)
    return Record(
        trial_of(model),
        description["about"]["steps"],
        adapter.name,
        {domain: {"all": part.accuracy} for domain, part in parts.items()},
        description["hparams"],
        adapter.describe(),
        needs={**asdict(adapter.needs), "predicts": adapter.predicts},
        stream=dict(stream or {}),
        calibration={domain: {"all": part.calibration_error} for domain, part in parts.items()},
    )
