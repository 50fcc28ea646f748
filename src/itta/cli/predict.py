"""itta predict: a row for each image."""

import sys
from contextlib import nullcontext
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from itta.cli.adapter_choice import adapter_of
from itta.cli.screen import Settings, check_at_least, progress_bars, row_writer, use_threads
from itta.errors import InputError


def predict(
    model: Annotated[Positional[Path], arg(metavar="MODEL")],
    images: Annotated[Positional[tuple[Path, ...]], arg(metavar="IMAGES …")],
    adapter: str | None = None,
    preset: Literal["paper", "released"] = "paper",
    settings: Settings = (),
    guard: bool = False,
    batch_size: int = 32,
    format: Literal["csv", "jsonl"] = "csv",
    out: Path | None = None,
    threads: int = 0,
) -> None:
    """Predict images or folders of images; a row each, with what adaptation changed.

    An image that cannot be read gets a row that says so, and the exit status is not 0.
    Example: itta predict runs/sites new-photos/ --out predictions.csv

    Args:
        model: Directory of a trained model.
        images: Image files, or folders searched for images.
        adapter: Test-time method (itta list adapters), source for none; not given: what itta tune chose, or itta+.
        preset: ITTA as we read the paper, or as its released code does it.
        settings: Settings of the adapter, name=value.
        guard: Watch the adapter, and take back what harms; itta+ always is.
        batch_size: Images per batch.
        format: csv, or one JSON object per line.
        out: File to write; the screen if not given.
        threads: CPU threads; 0 leaves it to torch.
    """
    from itta.adapters import adapt as make_adapter
    from itta.data.folder import list_images
    from itta.run.predict import Prediction, predict_files
    from itta.store.model import load

    use_threads(threads)
    check_at_least(1, batch_size=batch_size)
    if not images:
        raise InputError("no images to predict: name image files or folders after the model.")
    trained = load(model)
    chosen = make_adapter(trained, **adapter_of(model, adapter, preset, settings), guard=guard or None)
    files = list_images(images)
    unreadable = 0
    with (
        open(out, "w", newline="", encoding="utf-8") if out else nullcontext(sys.stdout) as stream,
        progress_bars(out is None) as report,
    ):
        write = row_writer(stream, format, [f.name for f in fields(Prediction)])
        done = 0
        for rows in predict_files(chosen, make_adapter(trained, "source"), files, batch_size):
            for row in rows:
                write(asdict(row))
            stream.flush()
            done += len(rows)
            unreadable += sum(bool(row.error) for row in rows)
            report("images", done, len(files))
    if unreadable:
        raise InputError(f"{unreadable} of {len(files)} images could not be read: see the column error.")
