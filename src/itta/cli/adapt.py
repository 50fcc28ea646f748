"""itta adapt: a target's images through a trained model, with and without adaptation."""

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from itta.cli.adapter_choice import adapter_of
from itta.cli.screen import Settings, check_at_least, command, print_json, progress_bars, show, use_threads
from itta.records.story import Story
from itta.report.tables import Table


def adapt(
    model: Annotated[Positional[Path], arg(metavar="MODEL")],
    data: Annotated[Positional[str], arg(metavar="DATA")],
    domain: tuple[str, ...] = (),
    order: Literal["iid", "sorted", "dirichlet"] = "iid",
    domains: Literal["in_turn", "gradual", "mixed", "recurring"] = "in_turn",
    concentration: float = 0.1,
    adapter: str | None = None,
    preset: Literal["paper", "released"] = "paper",
    settings: Settings = (),
    guard: bool = False,
    batch_size: int = 32,
    seed: int = 0,
    out: Path | None = None,
    data_root: Path | None = None,
    cache: bool = True,
    page: bool = True,
    threads: int = 0,
    json: bool = False,
) -> None:
    """Run a target's images through a trained model once, with and without adaptation, and compare.

    Labels, where the folders give them, are used for the score only. Examples:
    itta adapt runs/emoji emoji --domain noto-mono; itta adapt runs/sites photos/site-4 --set steps=2 --out results/

    Args:
        model: Directory of a trained model.
        data: "emoji", a data set of itta data list, a manifest, or a folder: root/class/image, or
            root/domain/class/image with --domain.
        domain: The target domain; several make a stream of them all.
        order: How the classes arrive: at random, one after another, or in clusters.
        domains: How several domains arrive: one after another, gliding from one to the next, mixed, or coming again.
        concentration: With --order dirichlet: the smaller, the fewer classes at a time.
        adapter: Test-time method (itta list adapters); not given: what itta tune chose for this model, or itta+.
        preset: ITTA as we read the paper, or as its released code does it.
        settings: Settings of the adapter, name=value.
        guard: Watch the adapter, and take back what harms; itta+ always is.
        batch_size: Images per batch of the stream.
        seed: Seed of the stream's order.
        out: Also write records, predictions, a figure and a page to this directory.
        data_root: Where data sets known by name lie; else ITTA_DATA says so.
        cache: Keep decoded images on disk for the next run.
        page: With --out: also write page.html, with everything to look at in one file.
        threads: CPU threads; 0 leaves it to torch.
        json: Print the result as JSON.
    """
    from itta.adapters import adapt as make_adapter
    from itta.data.dataset import prepare_images
    from itta.data.target import compare, find_stream, summarise, write_comparison
    from itta.explain.run_story import tell_adaptation, write_run_page
    from itta.store.model import load

    use_threads(threads)
    check_at_least(1, batch_size=batch_size)
    trained = load(model)
    chosen = make_adapter(trained, **adapter_of(model, adapter, preset, settings), guard=guard or None)
    target = find_stream(model, data, domain, order, domains, seed, concentration, data_root, cache)
    with progress_bars(json) as report:
        prepare_images(target.images, target.name, report)
        outcomes = compare(trained, target, chosen, batch_size, seed, report)
    result = summarise(target, chosen, *outcomes)
    how = {"order": order, "domains": domains, "concentration": concentration, "batch_size": batch_size, "seed": seed}
    files = write_comparison(out, model, target, chosen, outcomes, how) if out else []
    if out and page:

        def tell() -> Story:
            return tell_adaptation(command(), data, model, trained, target, chosen, outcomes, how)

        files = [*write_run_page(out, tell), *files]
    if json:
        print_json(result | {"files": [str(f) for f in files]})
        return
    rows = [[name, *values] for name, values in result["rows"].items()]
    show(Table(f"{target.name}: {result['images']} images, batches of {batch_size}", ["", *result["columns"]], rows))
    for file in files:
        print(file)
