"""Tell what a run did while it can still be told, and make its page."""

import math
import platform
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import itta
from itta.adapters import Adapter, Guard
from itta.algorithms import Algorithm
from itta.data.dataset import DomainDataset
from itta.data.target import Target
from itta.errors import InputWarning
from itta.explain.pictures import changed_pictures, grid_of_maps
from itta.metrics.outcome import Outcome
from itta.records.story import Event, Story, Stream, write_story
from itta.report.page.document import write_page
from itta.store.model import read_description
from itta.trial import Trial

PAGE = "page.html"


def tell_training(command: str, trial: Trial, dataset: DomainDataset) -> Story:
    """The records of a training say the rest."""
    domains = (*trial.train_domains, *trial.test_domains)
    title = f"{trial.algorithm} trained on {', '.join(trial.train_domains)}"
    return Story(title, command, facts_of_dataset(dataset, domains), versions())


def tell_adaptation(
    command: str,
    data: str,
    folder: Path,
    model: Algorithm,
    target: Target,
    adapter: Adapter,
    outcomes: tuple[Outcome, Outcome],
    how: Mapping[str, Any],
) -> Story:
    stream = tell_stream(model, target, adapter, *outcomes, how["batch_size"], title_of(folder, model, how["order"]))
    name = Path(data).resolve().name if Path(data).exists() else data
    facts = facts_of_target(name, target, model.task.classes)
    return Story(f"{adapter.name} on {target.name}", command, facts, versions(), (stream,))


def title_of(folder: Path, model: Algorithm, order: str) -> str:
    """Which model it was, and in what order the classes came unless at random."""
    description = read_description(folder)
    seed = f", seed {description.trial.trial_seed}" if "trial" in description.about else ""
    return f"{folder.resolve().name} ({model.name}{seed})" + ("" if order == "iid" else f", classes {order}")


def tell_stream(
    model: Algorithm, target: Target, adapter: Adapter, before: Outcome, after: Outcome, batch_size: int, title: str
) -> Stream:
    """One pass over a target, by the model as trained and by an adapter that has just been along it."""
    classes = tuple(model.task.classes)
    cam, cam_text = grid_of_maps(model, target, adapter, before, after)
    return Stream(
        target.name,
        adapter.name,
        title,
        classes,
        batch_size,
        tuple(before.predictions.tolist()),
        tuple(after.predictions.tolist()),
        tuple(after.labels.tolist()) if target.labelled else None,
        adapter.describe(),
        events_of(adapter),
        changed_pictures(target, classes, before, after),
        cam,
        cam_text,
        {"before": before.seconds / len(before.labels), "after": after.seconds / len(after.labels)},
    )


def events_of(adapter: Adapter) -> tuple[Event, ...]:
    """What the guard did, as far back as it remembers."""
    if not isinstance(adapter, Guard):
        return ()
    return tuple(
        Event(i.image, i.watch, i.value if math.isfinite(i.value) else None, i.limit, i.action) for i in adapter.log
    )


def facts_of_target(name: str, target: Target, classes: Sequence[str]) -> dict[str, Any]:
    images = {domain: int(own.sum()) for domain, own in target.of_domains(target.indices).items()}
    return facts(name, images, classes)


def facts_of_dataset(dataset: DomainDataset, domains: Sequence[str]) -> dict[str, Any]:
    return facts(dataset.name, {d: len(dataset.domain(d)) for d in domains}, dataset.classes)


def facts(name: str, images: Mapping[str, int], classes: Sequence[str]) -> dict[str, Any]:
    return {"name": name, "domains": list(images), "images": dict(images), "classes": list(classes)}


def versions() -> dict[str, str]:
    return {
        "itta": itta.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }


def write_run_page(folder: Path, tell: Callable[[], Story]) -> list[Path]:
    """The page of a run and the story it is made of; gives the files that were written.

    The results of the run are written by then, so whatever goes wrong here is a warning.
    """
    files: list[Path] = []
    try:
        (folder / PAGE).unlink(missing_ok=True)  # of an earlier run: it would tell of other results
        files.append(write_story(folder, tell()))
        files.insert(0, write_page(folder / PAGE, [folder]))
    except Exception as error:
        told = f"no page of the run was made ({type(error).__name__}: {error}); everything else is in {folder}."
        warnings.warn(InputWarning(told), stacklevel=2)
    return files
