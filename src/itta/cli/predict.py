"""itta predict: a row for each image."""

import sys
from contextlib import ExitStack
from dataclasses import asdict, fields
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from itta.cli.adapter_choice import AdapterFlags
from itta.cli.estimate import estimate_lines
from itta.cli.own_code import OwnCodeFlags
from itta.cli.screen import Flags, progress_bars, row_writer, say, use_threads
from itta.errors import InputError
from itta.report.tables import percent
from itta.settings import ComputeSettings, check_at_least

if TYPE_CHECKING:
    from itta.run.estimation import Estimation


def predict(
    model: Annotated[Positional[Path], arg(metavar="MODEL")],
    images: Annotated[Positional[tuple[Path, ...]], arg(metavar="IMAGES …")],
    adapter: Flags[AdapterFlags] = AdapterFlags(),
    batch_size: int = 32,
    format: Literal["csv", "jsonl"] = "csv",
    out: Path | None = None,
    own: Flags[OwnCodeFlags] = OwnCodeFlags(),
    compute: Flags[ComputeSettings] = ComputeSettings(),
    threads: int = 0,
    workers: int = 1,
) -> None:
    """Predict images or folders of images, one row each; the row says whether adaptation changed the answer.

    An image that cannot be read gets a row with the reason, and the exit status is not 0. After an interruption, the
    same command with the same --out goes on where it stopped.
    Example: itta predict runs/sites new-photos/ --out predictions.csv

    Args:
        model: Directory of a trained model.
        images: Image files, or folders to search for images.
        batch_size: Images per batch.
        format: csv, or jsonl with one JSON object per line.
        out: File to write. Without this flag, write to the screen.
        threads: CPU threads; 0 leaves the number to torch.
        workers: Threads that read images ahead; 0 reads them when they are needed.
    """
    from itta.adapters import adapt
    from itta.data.folder import find_images
    from itta.data.loaders import use_workers
    from itta.estimators import Witness
    from itta.files import open_for_rows, refuse_input
    from itta.nn.device import place
    from itta.run.compare import MOST_NOTED
    from itta.run.estimation import estimation_of, is_free
    from itta.run.predict import Prediction, predict_files
    from itta.run.unfinished_rows import UnfinishedRows, command_of
    from itta.store.model import load_model, read_description

    use_threads(threads)
    use_workers(workers)
    check_at_least(1, batch_size=batch_size)
    if not images:
        raise InputError("no images to predict: name image files or folders after the model.")
    trained = place(load_model(read_description(model), own.given()), compute.device, compute.precision)
    chosen = adapter.make(trained, model)
    total = sum(1 for _ in find_images(images))
    columns = [f.name for f in fields(Prediction)]
    unreadable = 0
    with ExitStack() as stack:
        unfinished, done = None, 0
        stream: IO[str] = sys.stdout
        witness = Witness(trained, chosen, most=MOST_NOTED) if is_free(chosen) else None
        if out is not None:
            refuse_input(out, [model, *images])
            command = command_of(model.resolve(), images, chosen.name, chosen.describe(), batch_size, format, total)
            unfinished = UnfinishedRows(out, chosen, command)
            done, unreadable = unfinished.done.images, unfinished.done.unreadable
            if done:
                witness = None  # an estimate needs the whole stream
                say(f"itta: {out} has {done} of {total} images; the rest follows.", file=sys.stderr)
            stream = stack.enter_context(open_for_rows(out, add=done > 0))
        report = stack.enter_context(progress_bars(out is None))
        write = row_writer(stream, format, columns, heading=done == 0)
        files = islice(find_images(images), done, None)
        for rows in predict_files(witness or chosen, adapt(trained, "source"), files, batch_size):
            for row in rows:
                write(asdict(row))
            wrong = sum(bool(row.error) for row in rows)
            stream.flush()
            if unfinished is not None:
                unfinished.note(len(rows), wrong, stream)
            done, unreadable = done + len(rows), unreadable + wrong
            report("images", done, total)
        if unfinished is not None:
            unfinished.finish()
    if witness is not None and witness.notes:
        say_estimate(estimation_of(witness, trained), chosen.name)
    if unreadable:
        raise InputError(f"{unreadable} of {total} images could not be read: see the column error.")


def say_estimate(found: "Estimation", adapter: str) -> None:
    """Print the estimated accuracy on the error stream: rows may go to the screen. Not all models have one."""
    combined = found.combined
    if found.estimated.combined is None:
        return
    if combined is not None:
        for name, share in {"source": combined.before, adapter: combined.after}.items():
            low, high = percent(share.low), percent(share.high)
            say(f"itta: estimated accuracy of {name}: {percent(share.value)} % ({low} to {high})", file=sys.stderr)
    for line in estimate_lines(found.estimated, adapter):
        say(f"itta: {line}", file=sys.stderr)
