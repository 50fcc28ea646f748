"""The diagnosis of itta+ on the page: the order of the stream, the class frequencies in use, and changed answers."""

from dataclasses import dataclass

import numpy as np

from itta.records.story import Diagnosed, Stream
from itta.report.page.charts import Chart, Mark, line_chart
from itta.report.page.stream_statistics import even_subset
from itta.report.tables import Table, percent

MOST_CLASSES = 20  # rows of a table
STEPS = {
    "restyled": "the answer with the sources' style, averaged in",
    "prototypes": "the prototypes' answer, averaged in",
    "frequencies": "the class frequencies of the stream, and the bias of the model",
    "neighbours": "the images before",
    "too close": "the margin: a class that is hardly more probable does not replace the trained model's",
}


@dataclass(frozen=True)
class DiagnosisView:
    """The diagnosis of one stream, ready to be shown."""

    text: str
    chart: Chart | None
    changes: Table
    prior: Table
    left_out: list[str]


def view_diagnosis(stream: Stream) -> DiagnosisView | None:
    found = stream.diagnosis
    if found is None:
        return None
    left_out = [f"Left out: {part}. Reason: {reason}." for part, reason in found.left_out.items()]
    return DiagnosisView(
        describe_order(found), likeness_chart(found), change_table(stream, found), prior_table(stream, found), left_out
    )


def describe_order(found: Diagnosed) -> str:
    """Say in words whether neighbours were alike, and whether the domain changed."""
    domains = len(found.new_domains)
    change = "No change of domain was noticed." if not domains else f"A change of domain was noticed {domains} ×."
    if not found.history:
        return change
    rho, kappa = found.history[-1].rho, found.history[-1].kappa
    if kappa == 0:
        order = f"Neighbouring images were no more alike than chance (ρ = {rho:.2f}), so they did not count."
    else:
        weight = "in full" if kappa == 1 else f"with weight κ = {kappa:.2f}"
        order = f"Neighbouring images were {rho:.2f} times as alike as chance (ρ), so they counted {weight} at the end."
    return f"{order} {change}"


def likeness_chart(found: Diagnosed) -> Chart | None:
    if not found.history:
        return None
    points = [found.history[i] for i in even_subset(len(found.history))]
    images = [p.images for p in points]
    series = {
        "ρ, likeness of neighbours (1: chance)": (images, [p.rho for p in points]),
        "κ, weight of the neighbours": (images, [p.kappa for p in points]),
    }
    marks = [Mark(n, "new domain", f"after {n:,} images: the style jumps") for n in found.new_domains]
    return line_chart("Are neighbouring images alike?", "images seen", series, marks, start=0)


def change_table(stream: Stream, found: Diagnosed) -> Table:
    rows = [[STEPS.get(step, step), f"{n:,}", percent(n / len(stream.after))] for step, n in found.changed.items()]
    title = "Which step changed answers. Each row counts the images with another class after the step than before it."
    return Table(title, ["step", "images", "of all, %"], rows)


def prior_table(stream: Stream, found: Diagnosed) -> Table:
    """The most frequent classes of the prior in use, beside the classes of the answers."""
    answers = np.bincount(stream.after, minlength=len(stream.classes)) / len(stream.after)
    shares = dict(zip(stream.classes, answers))
    ranked = sorted(found.prior.items(), key=lambda item: -item[1])
    rows = [[name, percent(share), percent(shares.get(name, 0.0))] for name, share in ranked[:MOST_CLASSES]]
    notes = [f"And {len(ranked) - MOST_CLASSES:,} more classes."] if len(ranked) > MOST_CLASSES else []
    notes.append("They are estimated from the answers, unless you tell them: --set frequencies=class:number,…")
    title = "Class frequencies in use. The prior weighs the answer to the last image; neighbours are part of it."
    return Table(title, ["class", "prior, %", "of all answers, %"], rows, notes=notes)
