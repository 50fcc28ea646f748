"""itta adapt: a target's images through a trained model, with and without adaptation."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from itta.cli.adapter_choice import AdapterFlags
from itta.cli.estimate import as_values, estimate_lines, estimate_table
from itta.cli.own_code import OwnCodeFlags
from itta.cli.screen import Flags, print_json, progress_bars, say, show, typed_command, use_threads
from itta.report.tables import Table, percent
from itta.settings import ComputeSettings, DataAccess, StreamSettings

if TYPE_CHECKING:
    from itta.run.compare import Comparison
    from itta.store.model import Description


def adapt(
    model: Annotated[Positional[Path], arg(metavar="MODEL")],
    data: Annotated[Positional[str], arg(metavar="DATA")],
    stream: Flags[StreamSettings] = StreamSettings(),
    adapter: Flags[AdapterFlags] = AdapterFlags(),
    out: Path | None = None,
    access: Flags[DataAccess] = DataAccess(),
    page: bool = True,
    own: Flags[OwnCodeFlags] = OwnCodeFlags(),
    compute: Flags[ComputeSettings] = ComputeSettings(),
    threads: int = 0,
    workers: int = 1,
    json: bool = False,
) -> None:
    """Run a target's images through a trained model once, with and without adaptation, and compare.

    Labels, if the folders give them, are used for the score only. After an interruption, the same command with the same
    --out goes on where it stopped. Examples:
    itta adapt runs/emoji emoji --domain noto-mono; itta adapt runs/sites photos/site-4 --set steps=2 --out results/

    Args:
        model: Directory of a trained model.
        data: A data set by name (itta list datasets), a manifest, or a folder: root/class/image, or
            root/domain/class/image with --domain.
        out: Directory for records, predictions, a figure and a page.
        page: With --out: write page.html, a page about the run in one file.
        threads: CPU threads; 0 leaves the number to torch.
        workers: Threads that read images ahead; 0 reads them when they are needed.
        json: Print the result as JSON.
    """
    from itta.data.dataset import prepare_images
    from itta.data.loaders import use_workers
    from itta.data.target import open_stream
    from itta.explain.adapted_stream import AdaptedStream, diagnosis_of
    from itta.explain.run_story import stream_title, tell_adaptation, write_run_page
    from itta.files import make_folder
    from itta.nn.device import place
    from itta.run.compare import compare
    from itta.run.unfinished_rows import command_of
    from itta.run.unfinished_stream import UNFINISHED, UnfinishedStream
    from itta.store.model import load_model, read_description

    use_threads(threads)
    use_workers(workers)
    stream.check()
    description = read_description(model)
    trained = place(load_model(description, own.given()), compute.device, compute.precision)
    chosen = adapter.make(trained, model)
    target = open_stream(data, description.expected, stream, access)
    unfinished = None
    if out:
        make_folder(out)
        identity = (description.weights_sha256, chosen.name, chosen.describe(), asdict(compute))
        command = command_of(identity, data, asdict(stream), len(target.indices), *target.images.names[:1])
        unfinished = UnfinishedStream(out / UNFINISHED, command)
    with progress_bars() as report:
        prepare_images(target.images, target.name, report)
        comparison = compare(trained, target, chosen, stream, report, unfinished)
    result = summary(comparison)
    files = write_files(out, description, comparison) if out else []
    if out and page:
        seed = description.trial.trial_seed if "trial" in description.about else None
        title = stream_title(model, trained.name, seed, stream.order)
        adapted = AdaptedStream(
            trained,
            target,
            chosen,
            comparison.before,
            comparison.after,
            stream.batch_size,
            *estimate_for_page(comparison),
        )
        files = [*write_run_page(out, lambda: tell_adaptation(typed_command(), data, adapted, title)), *files]
    if json:
        print_json(result | {"files": [str(f) for f in files]})
        return
    rows = [[name, *values] for name, values in result["rows"].items()]
    title = f"{target.name}: {result['images']} images, batches of {stream.batch_size}"
    show(Table(title, ["", *result["columns"]], rows))
    for part, reason in ((diagnosis_of(chosen) or {}).get("left out", {})).items():
        say(f"left out: {part} ({reason})")
    if comparison.estimation:
        truth = {"source": comparison.before.accuracy, chosen.name: comparison.after.accuracy}
        estimated = comparison.estimation.estimated
        show(estimate_table("Estimated without labels", estimated, chosen.name, truth if target.labelled else {}))
        for line in estimate_lines(estimated, chosen.name):
            say(line)
    for file in files:
        say(file)


def estimate_for_page(comparison: "Comparison") -> tuple[dict[str, float], tuple[float, ...]]:
    """The estimate along the stream, if there is one."""
    from itta.run.estimation import estimate_values

    found = comparison.estimation
    if found is None or found.combined is None or found.right is None:
        return {}, ()
    right = found.right.tolist() if len(found.right) == len(comparison.after.labels) else []  # of a sample only
    return estimate_values(found.combined.after), tuple(round(p, 4) for p in right)


def summary(comparison: "Comparison") -> dict[str, Any]:
    """Return accuracy if there are labels, and always the share of changed answers."""
    import numpy as np

    from itta.run.compare import by_domain

    target, before, after = comparison.target, comparison.before, comparison.after
    name = comparison.adapter.name
    rows: dict[str, list[str]] = {"source": []} if name == "source" else {"source": [], name: []}
    columns: list[str] = []
    if target.labelled:
        several = len(by_domain(target, before)) > 1
        columns = ["accuracy %", "first half %", "second half %"]
        columns += [f"{domain} %" for domain in by_domain(target, before)] if several else []
        for row, outcome in {"source": before, name: after}.items():
            halves = np.array_split(outcome.correct, 2)
            rows[row] = [percent(outcome.accuracy), *(percent(half.mean()) if len(half) else "-" for half in halves)]
            rows[row] += [percent(part.accuracy) for part in by_domain(target, outcome).values()] if several else []
    for row in rows:
        rows[row].append(percent(comparison.changed) if row != "source" else "-")
    result: dict[str, Any] = {
        "target": target.name,
        "images": len(before.predictions),
        "adapter": name,
        "settings": comparison.adapter.describe(),
        "changed": comparison.changed,
        "columns": [*columns, "answers changed %"],
        "rows": rows,
    }
    if comparison.estimation:
        result |= as_values(comparison.estimation)
    if target.labelled:
        result |= {"accuracy_before": before.accuracy, "accuracy": after.accuracy}
    return result


def write_files(out: Path, description: "Description", comparison: "Comparison") -> list[Path]:
    """Write the predictions; with labels also the records and a figure of the accuracy along the stream."""
    from itta.report.plots import plot_stream
    from itta.run.compare import append_records, write_predictions

    files = [out / "predictions.csv"]
    write_predictions(files[0], comparison, description.classes)
    if comparison.target.labelled:
        append_records(out / "records.jsonl", description, comparison)
        before, after = comparison.before, comparison.after
        window = max(1, min(200, len(before.correct) // 4))
        curves = {
            "source": [before.running_accuracy(window)],
            comparison.adapter.name: [after.running_accuracy(window)],
        }
        title = f"{comparison.target.name}: one pass"
        files += [out / "records.jsonl", plot_stream(out / "stream.png", curves, window, title)]
    return files
