"""itta export: a model in a file that runs elsewhere."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from itta.cli.adapter_choice import adapter_of
from itta.cli.screen import Settings, check_at_least, print_json, progress_bars, use_threads
from itta.errors import InputError


def export(
    model: Annotated[Positional[Path], arg(metavar="MODEL")],
    onnx: Path | None = None,
    torch: Path | None = None,
    adapt_on: Annotated[str | None, arg(metavar="DATA")] = None,
    domain: tuple[str, ...] = (),
    adapter: str | None = None,
    preset: Literal["paper", "released"] = "paper",
    settings: Settings = (),
    guard: bool = False,
    batch_size: int = 32,
    seed: int = 0,
    threads: int = 0,
    json: bool = False,
) -> None:
    """Write a model, or the model as adapted to a target, to ONNX or to a torch.export program.

    Takes images [B, 3, H, W] in [0, 1] and gives logits; what was written is run and compared with the model.
    Examples: itta export runs/sites --onnx sites.onnx;
    itta export runs/sites --adapt-on photos/site-4 --adapter itta+ --onnx site-4.onnx --torch site-4.pt2

    Args:
        model: Directory of a trained model.
        onnx: ONNX file to write; needs itta[export].
        torch: File to write for torch.export.load.
        adapt_on: Learn from these images first: "emoji", or a folder as for itta adapt.
        domain: With --adapt-on, the target domain; several make a stream of them all.
        adapter: With --adapt-on, the test-time method; not given: what itta tune chose for this model, or itta+.
        preset: ITTA as we read the paper, or as its released code does it.
        settings: Settings of the adapter, name=value.
        guard: Watch the adapter, and take back what harms; itta+ always is.
        batch_size: Images per batch of the stream.
        seed: Seed of the stream's order.
        threads: CPU threads; 0 leaves it to torch.
        json: Print the result as JSON.
    """
    from itta.adapters import adapt
    from itta.data.target import find_stream
    from itta.store import export as library
    from itta.store.model import load

    use_threads(threads)
    check_at_least(1, batch_size=batch_size)
    if onnx is None and torch is None:
        raise InputError("nothing to write: give --onnx FILE, --torch FILE or both.")
    if adapt_on is None and (adapter not in (None, "source") or settings or domain or guard):
        raise InputError("an adapter that saw no image has learned nothing: give it images with --adapt-on FOLDER.")
    trained = load(model)
    if adapt_on is None:
        chosen = adapt(trained, "source")
    else:
        chosen = adapt(trained, **adapter_of(model, adapter, preset, settings), guard=guard or None)
        chosen.frozen()  # refuse before the work, not after it
        target = find_stream(model, adapt_on, domain, seed=seed)
        with progress_bars(json) as report:
            library.adapt_on(chosen, target, batch_size, seed, report)
    written = [library.export_onnx(chosen, onnx)] if onnx else []
    written += [library.export_torch(chosen, torch)] if torch else []
    if json:
        print_json([asdict(e) | {"path": str(e.path), "adapter": chosen.name} for e in written])
        return
    for e in written:
        print(f"{e.path}: {chosen.name}, {e.format}; largest difference from the model {e.difference:.1e}")
