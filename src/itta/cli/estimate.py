"""itta estimate: accuracy on images without labels, before and after adaptation."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from itta.cli.adapter_choice import AdapterFlags
from itta.cli.own_code import OwnCodeFlags
from itta.cli.screen import Flags, print_json, progress_bars, say, show, use_threads
from itta.report.tables import Table, percent
from itta.settings import ComputeSettings, DataAccess, StreamSettings

if TYPE_CHECKING:
    from itta.estimators import Estimated
    from itta.run.estimation import Estimation

ONE_CLASS = 0.8  # share of equal answers at which the user is warned


def estimate(
    model: Annotated[Positional[Path], arg(metavar="MODEL")],
    data: Annotated[Positional[str], arg(metavar="DATA")],
    stream: Flags[StreamSettings] = StreamSettings(),
    adapter: Flags[AdapterFlags] = AdapterFlags(),
    access: Flags[DataAccess] = DataAccess(),
    own: Flags[OwnCodeFlags] = OwnCodeFlags(),
    compute: Flags[ComputeSettings] = ComputeSettings(),
    threads: int = 0,
    json: bool = False,
) -> None:
    """Estimate the accuracy on images without labels, before and after adaptation, each with a 90 % interval.

    The estimate comes from the answers alone, and from stand-in targets that were made of the sources at the end of the
    training. It can be wrong: itta check finds out with a few labels. Labels, if the folders give them, are
    only shown beside it. Examples: itta estimate runs/sites photos/site-4; itta estimate runs/emoji emoji --json

    Args:
        model: Directory of a trained model.
        data: A data set by name (itta list datasets), a manifest, or a folder of images.
        threads: CPU threads; 0 leaves the number to torch.
        json: Print the result as JSON.
    """
    from itta.data.dataset import prepare_images
    from itta.data.target import open_stream
    from itta.nn.device import place
    from itta.run.estimation import estimate_target
    from itta.store.model import load_model, read_description

    use_threads(threads)
    stream.check()
    description = read_description(model)
    trained = place(load_model(description, own.given()), compute.device, compute.precision)
    chosen = adapter.make(trained, model)
    target = open_stream(data, description.expected, stream, access)
    with progress_bars() as report:
        prepare_images(target.images, target.name, report)
        found, outcome, before = estimate_target(trained, target, chosen, stream, report)
    truth = {"source": before, chosen.name: outcome.accuracy} if target.labelled else {}
    if json:
        print_json({"target": target.name, "adapter": chosen.name, **as_values(found), "accuracy": truth or None})
        return
    title = f"{target.name}: {found.estimated.images} images, {found.estimated.changed} with a changed answer"
    show(estimate_table(title, found.estimated, chosen.name, truth))
    if found.classes:
        rows = [[c.name, str(c.images), percent(c.right)] for c in found.classes]
        show(Table(f"Answers of {chosen.name}, by class", ["answer", "images", "estimated right %"], rows))
    for line in estimate_lines(found.estimated, chosen.name):
        say(line)


def as_values(found: "Estimation") -> dict[str, Any]:
    """The estimate as plain values, for JSON."""
    return {"estimate": asdict(found.estimated), "classes": [c._asdict() for c in found.classes]}


def estimate_table(title: str, estimated: "Estimated", adapter: str, truth: dict[str, float]) -> Table:
    """Lay out the estimated accuracies, beside the true ones if these are known."""
    combined = estimated.combined
    columns = ["", "estimated accuracy %", "90 % interval", *(["true accuracy %"] if truth else [])]
    if combined is None or combined.refused:
        rows = [[f"source, by {name}", percent(value), "-"] for name, value in estimated.single.items()]
        return Table(title, columns, [[*row, *([percent(truth["source"])] if truth else [])] for row in rows])
    shares = {"source": combined.before} | ({} if adapter == "source" else {adapter: combined.after})
    rows = [[name, percent(s.value), f"{percent(s.low)} to {percent(s.high)}"] for name, s in shares.items()]
    return Table(title, columns, [[*row, *([percent(truth[row[0]])] if truth else [])] for row in rows])


def estimate_lines(estimated: "Estimated", adapter: str) -> list[str]:
    """Return the estimate in words."""
    combined = estimated.combined
    if combined is None:
        return [f"No estimate with an interval: {estimated.missing}."]
    if combined.refused:
        return [f"No estimate with an interval: {combined.refused}."]
    lines = []
    if adapter != "source" and estimated.changed == 0:
        lines.append(f"{adapter} changes no answer here, so it neither helps nor hurts.")
    elif adapter != "source":
        gain = combined.gain
        lines.append(
            f"{adapter} helps with a probability of {100 * combined.helps:.0f} %: estimated gain "
            f"{100 * gain.value:+.1f} points, 90 % interval {100 * gain.low:+.1f} to {100 * gain.high:+.1f}."
        )
    if combined.distance > 1:
        lines.append(
            f"These images are unlike the stand-ins (distance {combined.distance:.1f}; nine of ten lie within 1), so "
            "the intervals are wider."
        )
    if estimated.most_frequent >= ONE_CLASS:
        lines.append(
            f"{100 * estimated.most_frequent:.0f} % of the images get the same answer. If they really show one class, "
            "the estimate is too low: it takes such answers for confusion."
        )
    return [*lines, "An estimate without labels can be wrong; itta check decides with a few labels."]
