"""itta check: the few labels that tell how accurate a model is on a target, and whether adaptation helps."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from itta.cli.adapter_choice import AdapterFlags
from itta.cli.own_code import OwnCodeFlags
from itta.cli.screen import Flags, print_json, progress_bars, say, show, use_threads
from itta.report.tables import Table, percent
from itta.settings import ComputeSettings, DataAccess, StreamSettings

if TYPE_CHECKING:
    from itta.metrics.label_verdict import Checked
    from itta.metrics.sequential import Verdict


def check(
    model: Annotated[Positional[Path], arg(metavar="MODEL")],
    data: Annotated[Positional[str], arg(metavar="DATA")],
    budget: int = 50,
    out: Path = Path("check"),
    labels: Path | None = None,
    stream: Flags[StreamSettings] = StreamSettings(),
    adapter: Flags[AdapterFlags] = AdapterFlags(),
    access: Flags[DataAccess] = DataAccess(),
    own: Flags[OwnCodeFlags] = OwnCodeFlags(),
    compute: Flags[ComputeSettings] = ComputeSettings(),
    threads: int = 0,
    json: bool = False,
) -> None:
    """Choose the images of a target that are worth a label, and judge by their labels.

    Without --labels, run the target with and without adaptation and write a page on which a person labels some images:
    first those with a changed answer, because only these tell whether adaptation helps. With --labels, read the file
    that the page saved. You may look after every label; the test stays valid. Examples:
    itta check runs/sites photos/site-4 --out check; itta check runs/sites photos/site-4 --labels check/labels.csv

    Args:
        model: Directory of a trained model.
        data: A data set by name (itta list datasets), a manifest, or a folder of images.
        budget: Images to label. A larger budget later keeps the images and labels of a smaller one.
        out: Directory for the page and the plan.
        labels: File that the page saved; needs the plan in --out.
        threads: CPU threads; 0 leaves the number to torch.
        json: Print the result as JSON.
    """
    if labels is not None:
        show_verdict(out, labels, json)
        return
    from itta.data.dataset import prepare_images
    from itta.data.target import open_stream
    from itta.explain.label_pictures import label_pictures
    from itta.files import make_folder
    from itta.nn.device import place
    from itta.records.label_plan import write_plan
    from itta.report.page.labelling import write_labelling_page
    from itta.run.compare import compare
    from itta.run.label_sample import draw_sample
    from itta.store.model import load_model, read_description

    use_threads(threads)
    stream.check()
    description = read_description(model)
    trained = place(load_model(description, own.given()), compute.device, compute.precision)
    chosen = adapter.make(trained, model)
    target = open_stream(data, description.expected, stream, access)
    make_folder(out)
    with progress_bars() as report:
        prepare_images(target.images, target.name, report)
        comparison = compare(trained, target, chosen, stream, report)
    plan = draw_sample(comparison, tuple(description.classes), description.weights_sha256, budget, stream.seed)
    pictures = label_pictures(target.images, [s.number for s in plan.sample])
    files = [write_labelling_page(out / "label.html", plan, pictures), write_plan(out, plan)]
    if json:
        print_json(
            {"images": plan.images, "changed": plan.changed, "sample": len(plan.sample), "files": list(map(str, files))}
        )
        return
    changed = sum(s.stratum == "changed" for s in plan.sample)
    say(f"{plan.images} images, {plan.changed} with a changed answer.")
    say(f"To label: {len(plan.sample)} images, {changed} of them with a changed answer.")
    for file in files:
        say(file)


def show_verdict(out: Path, labels: Path, json: bool) -> None:
    """Print the answer that the labels give."""
    from itta.metrics.label_verdict import judge_labels
    from itta.records.label_plan import read_labels, read_plan

    plan = read_plan(out)
    checked = judge_labels(plan, read_labels(labels, plan))
    if json:
        print_json(asdict(checked))
        return
    shares = {"source": checked.before, plan.adapter: checked.after}
    rows = [[name, percent(s.value), f"{percent(s.low)} to {percent(s.high)}"] for name, s in shares.items()]
    title = f"{plan.target}: {plan.images} images, {checked.labels} of {checked.planned} planned labels"
    show(Table(title, ["", "accuracy %", "90 % interval"], rows))
    say(verdict_text(plan.adapter, checked))
    for line in frequencies_text(checked.counted):
        say(line)


def frequencies_text(counted: Mapping[str, int]) -> Iterator[str]:
    """Say what the labels tell about the classes, and how to tell it to itta+."""
    seen = {name: n for name, n in sorted(counted.items(), key=lambda item: -item[1]) if n}
    if not seen:
        return
    told = ", ".join(f"{name} {n}" for name, n in seen.items())
    yield f"The labels count as {sum(seen.values())} images drawn at random: {told}."
    if not any("," in name for name in seen):  # a comma would split the setting
        setting = shlex.quote("frequencies=" + ",".join(f"{name}:{n}" for name, n in seen.items()))
        yield f"Tell itta+, if classes are not equally frequent: --set {setting}"


def verdict_text(adapter: str, checked: "Checked") -> str:
    """Write the verdict in words."""
    v: Verdict = checked.verdict
    basis = f"by {v.labels} labels of {v.changed} changed images"
    if v.decision == "undecided":
        return (
            f"Undecided {basis}: the e-value that {adapter} helps is {v.e_helps:.3g}, that it hurts {v.e_hurts:.3g}; "
            "40 decides. "
            f"About {v.still_needed} more labels of changed images are needed (half of the simulated futures)."
        )
    if v.changed == 0:
        return f"{adapter} changed no answer, so it neither helps nor hurts."
    if v.decision == "equal":
        return f"{adapter} neither helps nor hurts: every changed image has a label, and as many were gained as lost."
    e_value = max(v.e_helps, v.e_hurts)
    return f"{adapter} {v.decision}, {basis} (e-value {e_value:.3g}; at most 5 % of such verdicts are false)."
