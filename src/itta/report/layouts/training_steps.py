"""Methods that were trained for several numbers of steps get a row for each of them."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from itta.records import Record
from itta.records.domainbed import dataset_name
from itta.report.layouts.base import Layout, Row

Steps = Mapping[str, Mapping[str, set[int]]]  # algorithm -> data set -> numbers of steps


def split_by_steps(layout: Layout, records: Sequence[Record]) -> Layout:
    """Give a method a row for each number of training steps. A row with another number than most methods says so."""
    steps = recorded_steps(records)
    if all(len(found) == 1 for by_dataset in steps.values() for found in by_dataset.values()):
        return layout
    usual = usual_steps(steps)
    return replace(layout, rows=tuple(part for row in layout.rows for part in split_row(row, steps, usual, records)))


def recorded_steps(records: Sequence[Record]) -> Steps:
    found: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for r in records:
        found[r.trial.algorithm][dataset_name(r.trial.dataset)].add(r.trial.steps)
    return found


def usual_steps(steps: Steps) -> dict[str, int]:
    """The number of steps that most methods have on a data set; the smallest of several."""
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for by_dataset in steps.values():
        for dataset, found in by_dataset.items():
            counts[dataset].update(found)
    return {dataset: min(of, key=lambda n: (-of[n], n)) for dataset, of in counts.items()}


def split_row(row: Row, steps: Steps, usual: Mapping[str, int], records: Sequence[Record]) -> Iterator[Row]:
    mine = steps.get(row.algorithm, {})
    if all(len(found) == 1 for found in mine.values()):
        yield row
        return
    common = {dataset: usual[dataset] if usual[dataset] in found else min(found) for dataset, found in mine.items()}
    own = [r for r in records if row.takes_model(r) and (row.adapter == "source" or row.takes_adapter(r))]
    plain = replace(row, steps=common)
    if not own or any(plain.takes_steps(r.trial) for r in own):
        yield plain
    for n in sorted({n for found in mine.values() for n in found}):
        places = {dataset: n for dataset, found in mine.items() if n in found and common[dataset] != n}
        marked = replace(row, label=f"{row.label}, {n:,} training steps", steps=places)
        if places and any(marked.takes_steps(r.trial) for r in own):
            yield marked
