"""The demo: a pretrained network learns three drawing styles and adapts, without labels, to a fourth."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from itta import records
from itta.adapters import Adapter, adapt
from itta.algorithms import Algorithm
from itta.data import load_dataset
from itta.data.emoji import STYLES
from itta.data.target import Target, open_target
from itta.explain.adapted_stream import AdaptedStream
from itta.explain.run_story import facts_of_dataset, tell_stream, versions, write_run_page
from itta.files import replace_text
from itta.progress import ReportProgress, silent
from itta.records.story import Story
from itta.report.plots import DomainPictures, plot_stream, plot_styles, plot_summary
from itta.report.tables import Table, percent, percent_mean
from itta.run.compare import record_of
from itta.run.evaluate import Outcome, evaluate
from itta.store.model import load_model, read_description
from itta.sweep.engines import run_local
from itta.trial import Trial

METHODS = ("erm", "consistency", "itta")
LABELS = {
    ("erm", "source"): "ERM",
    ("consistency", "source"): "consistency",
    ("itta", "source"): "ITTA without test-time step",
    ("itta", "itta"): "ITTA",
}
WINDOW = 200
Left = tuple[Algorithm, Target, Adapter]  # a trained model, where it was adapted to, and what came of it


@dataclass(frozen=True)
class Settings:
    target: str = "noto-mono"
    seeds: tuple[int, ...] = (0, 1)
    steps: int = 40
    batch_size: int = 12  # per source domain
    lr: float = 3e-4
    stream_batch: int = 32


def demo_trial(settings: Settings, algorithm: str, seed: int) -> Trial:
    sources = tuple(s for s in STYLES if s != settings.target)
    overrides = {"lr": settings.lr, "batch_size": settings.batch_size}
    return Trial(
        dataset="emoji",
        algorithm=algorithm,
        train_domains=sources,
        test_domains=(settings.target,),
        trial_seed=seed,
        steps=settings.steps,
        augment=False,  # so few steps do not see past it
        overrides=overrides,
    )


def run_demo(
    out: Path,
    settings: Settings,
    report: ReportProgress = silent,
    command: str | None = "itta demo",
) -> tuple[Table, dict[str, Path]]:
    """Train what is not trained yet, adapt, and write table and figures; gives the table and the files.

    ``command`` is what the page says to repeat it; without one, no page is made.
    """
    jobs = {
        f"{algorithm}, seed {seed}": (demo_trial(settings, algorithm, seed), out / "runs" / f"{algorithm}-{seed}")
        for seed in settings.seeds
        for algorithm in METHODS[::-1]  # the longest first
    }
    run_local(jobs, slots=min(2, os.cpu_count() or 1), report=report)
    outcomes, left = adapt_all(out, settings)
    table, files = write_results(out, settings, outcomes)
    if command is not None:
        written = write_run_page(out, lambda: demo_story(command, settings, outcomes, left))
        files = {path.stem: path for path in written} | files
    return table, files


def demo_story(
    command: str,
    settings: Settings,
    outcomes: Mapping[tuple[str, str], Sequence[Outcome]],
    left: Sequence[Left],
) -> Story:
    """Tell of ITTA along the target, once for each seed."""
    streams = []
    before, after = outcomes["itta", "source"], outcomes["itta", "itta"]
    for seed, (model, target, adapter), b, a in zip(settings.seeds, left, before, after):
        title = f"{LABELS['itta', 'itta']}, seed {seed}"
        streams.append(tell_stream(AdaptedStream(model, target, adapter, b, a, settings.stream_batch), title))
    title = f"ITTA on emoji: learned from three drawing styles, adapted to {settings.target}"
    facts = facts_of_dataset(load_dataset("emoji", image_size=64), STYLES)
    return Story(title, command, facts, versions(), tuple(streams))


def adapt_all(out: Path, settings: Settings) -> tuple[dict[tuple[str, str], list[Outcome]], list[Left]]:
    """Every model on the target stream, as trained and, for ITTA, adapted; all seeds. And ITTA as it was then left."""
    left: list[Left] = []
    outcomes: dict[tuple[str, str], list[Outcome]] = {row: [] for row in LABELS}
    path = out / "records.jsonl"
    path.unlink(missing_ok=True)  # made again below from the trained models
    for seed in settings.seeds:
        for algorithm, method in LABELS:
            folder = out / "runs" / f"{algorithm}-{seed}"
            description = read_description(folder)
            model = load_model(description)
            adapter = adapt(model, method)
            target = open_target("emoji", description.expected, settings.target)
            outcome = evaluate(adapter, target.images, target.indices, settings.stream_batch, seed)
            outcomes[algorithm, method].append(outcome)
            records.append(path, record_of(description, adapter, target, outcome, {}))
            if method == "itta":
                left.append((model, target, adapter))
    return outcomes, left


def write_results(
    out: Path, settings: Settings, outcomes: dict[tuple[str, str], list[Outcome]]
) -> tuple[Table, dict[str, Path]]:
    results = {LABELS[row]: [o.accuracy for o in runs] for row, runs in outcomes.items()}
    curves = {LABELS[row]: [o.running_accuracy(WINDOW) for o in outcomes[row]] for row in list(LABELS)[2:]}
    table = Table(
        f"Accuracy on {settings.target}, never seen in training, %",
        ["method", *(f"seed {seed}" for seed in settings.seeds), "mean ± s.e."],
        [[name, *map(percent, values), percent_mean(values)] for name, values in results.items()],
    )
    pictures = DomainPictures(*sample_pictures(), settings.target)
    files = {
        "table": out / "results.md",
        "records": out / "records.jsonl",
        "styles": plot_styles(out / "styles.png", pictures),
        "stream": plot_stream(
            out / "stream.png", curves, WINDOW, f"{settings.target}: one pass, batches of {settings.stream_batch}"
        ),
        "summary": plot_summary(out / "summary.png", pictures, results, curves, WINDOW),
    }
    replace_text(files["table"], f"{table.title}\n\n{table.to_markdown()}\n")
    return table, files


def sample_pictures() -> tuple[dict[str, np.ndarray], list[str]]:
    """One emoji of some classes, drawn in every style."""
    dataset = load_dataset("emoji", image_size=64)
    common = set.intersection(*(set(d.groups or ()) for d in dataset.domains.values()))
    first = next(iter(dataset.domains.values()))
    codes: dict[str, str] = {}
    for label, code in zip(first.labels, first.groups or ()):
        if code in common:
            codes.setdefault(dataset.classes[label], code)
    codes = dict(list(codes.items())[:9])
    pictures = {}
    for style, domain in dataset.domains.items():
        where = {code: i for i, code in reversed(list(enumerate(domain.groups or ())))}
        pictures[style] = domain.read([where[c] for c in codes.values()]).permute(0, 2, 3, 1).numpy()
    return pictures, [name.replace("_", " ") for name in codes]
