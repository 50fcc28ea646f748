"""itta export: a model in a file that runs elsewhere."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from itta.cli.adapter_choice import AdapterFlags
from itta.cli.own_code import OwnCodeFlags
from itta.cli.screen import Flags, print_json, progress_bars, say, use_threads
from itta.errors import InputError
from itta.settings import ComputeSettings, DataAccess, StreamSettings


def export(
    model: Annotated[Positional[Path], arg(metavar="MODEL")],
    onnx: Path | None = None,
    torch: Path | None = None,
    adapt_on: Annotated[str | None, arg(metavar="DATA")] = None,
    adapter: Flags[AdapterFlags] = AdapterFlags(),
    stream: Flags[StreamSettings] = StreamSettings(),
    access: Flags[DataAccess] = DataAccess(),
    own: Flags[OwnCodeFlags] = OwnCodeFlags(),
    compute: Flags[ComputeSettings] = ComputeSettings(),
    threads: int = 0,
    json: bool = False,
) -> None:
    """Write a model, or the model as adapted to a target, to ONNX or to a torch.export program.

    The file takes images [B, 3, H, W] in [0, 1] and gives logits. It is run and compared with the model before it
    appears. Examples: itta export runs/sites --onnx sites.onnx;
    itta export runs/sites --adapt-on photos/site-4 --adapter itta+ --onnx site-4.onnx --torch site-4.pt2

    Args:
        model: Directory of a trained model.
        onnx: ONNX file to write; needs itta[export].
        torch: File to write for torch.export.load.
        adapt_on: Images to adapt to first: a data set by name, or a folder as for itta adapt.
        threads: CPU threads; 0 leaves the number to torch.
        json: Print the result as JSON.
    """
    from itta.adapters import adapt
    from itta.adapters.unlabelled_pass import observe_all
    from itta.data.target import open_stream
    from itta.nn.device import place
    from itta.store import export as library
    from itta.store.model import load_model, read_description

    use_threads(threads)
    stream.check()
    if onnx is None and torch is None:
        raise InputError("nothing to write: give --onnx FILE, --torch FILE or both.")
    chooses = adapter.adapter not in (None, "source") or adapter.settings or adapter.guard
    if adapt_on is None and (chooses or stream.domain):
        raise InputError("an adapter that saw no image has learned nothing: give it images with --adapt-on FOLDER.")
    description = read_description(model)
    trained = place(load_model(description, own.given()), compute.device, compute.precision)
    if adapt_on is None:
        chosen = adapt(trained, "source")
    else:
        chosen = adapter.make(trained, model)
        chosen.frozen()  # refuse before the work, not after it
        target = open_stream(adapt_on, description.expected, stream, access)
        with progress_bars() as report:
            batches = target.batches(stream.batch_size, stream.seed, chosen.needs.batch)
            observe_all(chosen, (x for _, x, _ in batches), len(target.indices), report)
    written = [library.export_onnx(chosen, onnx)] if onnx else []
    written += [library.export_torch(chosen, torch)] if torch else []
    if json:
        print_json([asdict(e) | {"path": str(e.path), "adapter": chosen.name} for e in written])
        return
    for e in written:
        say(f"{e.path}: {chosen.name}, {e.format}; largest difference from the model {e.difference:.1e}")
