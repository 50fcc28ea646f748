"""The story of a run, collected at its end, and the page made from it."""

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
from itta.data.dataset import DomainDataset
from itta.data.target import Target
from itta.errors import InputWarning
from itta.explain.adapted_stream import AdaptedStream, diagnosis_of
from itta.explain.pictures import changed_pictures, grid_of_maps
from itta.records.story import Diagnosed, Event, Likeness, Story, Stream, write_story
from itta.report.page.document import write_page
from itta.trial import Trial

PAGE = "page.html"


def tell_training(command: str, trial: Trial, dataset: DomainDataset) -> Story:
    """The story of a training: its data and its command. The records hold the results."""
    domains = (*trial.train_domains, *trial.test_domains)
    title = f"{trial.algorithm} trained on {', '.join(trial.train_domains)}"
    return Story(title, command, facts_of_dataset(dataset, domains), versions())


def tell_adaptation(command: str, data: str, stream: AdaptedStream, title: str) -> Story:
    """The story of one adaptation; ``title`` names the model, as `stream_title` does."""
    name = Path(data).resolve().name if Path(data).exists() else data
    facts = facts_of_target(name, stream.target, stream.classes)
    about = f"{stream.adapter.name} on {stream.target.name}"
    return Story(about, command, facts, versions(), (tell_stream(stream, title),))


def stream_title(folder: Path, algorithm: str, trial_seed: int | None, order: str = "iid") -> str:
    """Name the model of a stream, and the order of the classes unless they come at random.

    >>> stream_title(Path("runs/sites"), "itta", 0), stream_title(Path("sites"), "erm", None, "sorted")
    ('sites (itta, seed 0)', 'sites (erm), classes sorted')
    """
    seed = "" if trial_seed is None else f", seed {trial_seed}"
    return f"{folder.resolve().name} ({algorithm}{seed})" + ("" if order == "iid" else f", classes {order}")


def tell_stream(stream: AdaptedStream, title: str) -> Stream:
    """One pass over a target, by the model as trained and by the adapter."""
    before, after = stream.before, stream.after
    cam, cam_text = grid_of_maps(stream)
    return Stream(
        stream.target.name,
        stream.adapter.name,
        title,
        stream.classes,
        stream.batch_size,
        tuple(before.predictions.tolist()),
        tuple(after.predictions.tolist()),
        tuple(after.labels.tolist()) if stream.target.labelled else None,
        stream.adapter.describe(),
        guard_events(stream.adapter),
        changed_pictures(stream),
        cam,
        cam_text,
        {"before": before.seconds / len(before.labels), "after": after.seconds / len(after.labels)},
        tell_diagnosis(stream.adapter),
        dict(stream.estimate),
        stream.estimated,
    )


def tell_diagnosis(adapter: Adapter) -> Diagnosed | None:
    """The diagnosis of itta+ after the stream; None for other adapters."""
    found = diagnosis_of(adapter)
    if found is None:
        return None
    history = tuple(Likeness(**entry) for entry in found["history"])
    return Diagnosed(history, found["prior"], found["changed"], tuple(found["new domains"]), found["left out"])


def guard_events(adapter: Adapter) -> tuple[Event, ...]:
    """The interventions of the guard, as far back as its log goes."""
    if not isinstance(adapter, Guard):
        return ()
    return tuple(
        Event(i.image, i.watch, i.value if math.isfinite(i.value) else None, i.limit, i.action) for i in adapter.log
    )


def facts_of_target(name: str, target: Target, classes: Sequence[str]) -> dict[str, Any]:
    images = {domain: int(own.sum()) for domain, own in target.of_domains(target.indices).items()}
    return data_facts(name, images, classes)


def facts_of_dataset(dataset: DomainDataset, domains: Sequence[str]) -> dict[str, Any]:
    return data_facts(dataset.name, {d: len(dataset.domain(d)) for d in domains}, dataset.classes)


def data_facts(name: str, images: Mapping[str, int], classes: Sequence[str]) -> dict[str, Any]:
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
    """Write the story of a run and its page; return the files written.

    The results of the run are on disk already, so an error here becomes a warning.
    """
    files: list[Path] = []
    try:
        (folder / PAGE).unlink(missing_ok=True)  # of an earlier run, with other results
        files.append(write_story(folder, tell()))
        files.insert(0, write_page(folder / PAGE, [folder]))
    except Exception as error:
        message = f"no page of the run was made ({type(error).__name__}: {error}); everything else is in {folder}."
        warnings.warn(InputWarning(message), stacklevel=2)
    return files
