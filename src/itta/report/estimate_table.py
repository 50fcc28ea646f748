"""The table of estimates against truth: accuracies that were estimated without labels, where labels exist too."""

from collections.abc import Sequence

from itta.records import Record
from itta.records.domainbed import dataset_name
from itta.report.tables import Table, percent, points

LONGEST = 200  # rows; the notes count all


def estimate_table(records: Sequence[Record]) -> Table:
    """A row for each record with an estimate, and a summary: mean error, and how many intervals hold the truth."""
    found = [(r, truth) for r in records if "accuracy" in r.estimate and (truth := measured(r)) is not None]
    rows = [[*names(r), percent(truth), percent(r.estimate["accuracy"]), *judged(r, truth)] for r, truth in found]
    columns = [
        "data",
        "target",
        "model",
        "adapter",
        "seed",
        "true %",
        "estimated %",
        "90 % interval",
        "error",
        "holds it",
    ]
    notes = []
    if found:
        errors = [abs(r.estimate["accuracy"] - truth) for r, truth in found]
        held = sum(holds(r, truth) for r, truth in found)
        notes.append(
            f"{len(found)} estimates: mean error {100 * sum(errors) / len(errors):.1f} points, largest "
            f"{100 * max(errors):.1f}; {held} of {len(found)} intervals hold the truth."
        )
    else:
        notes.append("No record has an estimate: itta adapt writes one beside itta+, for a model with stand-ins.")
    if len(rows) > LONGEST:
        notes.append(f"The first {LONGEST} of {len(rows)} rows are shown.")
    return Table("Estimate against truth", columns, rows[:LONGEST], notes=notes)


def measured(r: Record) -> float | None:
    """The true accuracy on the images of the estimate: those of all domains of the stream."""
    shares = [splits["all"] for splits in r.accuracy.values() if "all" in splits]
    return shares[0] if len(shares) == 1 else None


def names(r: Record) -> list[str]:
    target = next(iter(r.accuracy))
    return [dataset_name(r.trial.dataset), target, r.trial.algorithm, r.adapter, str(r.trial.trial_seed)]


def holds(r: Record, truth: float) -> bool:
    return r.estimate.get("low", 0.0) <= truth <= r.estimate.get("high", 1.0)


def judged(r: Record, truth: float) -> list[str]:
    interval = f"{percent(r.estimate.get('low', 0.0))} to {percent(r.estimate.get('high', 1.0))}"
    return [interval, points(r.estimate["accuracy"] - truth), "yes" if holds(r, truth) else "no"]
