"""Pairs of training and test-time method in the benchmark: tables by order of the stream, and what they mean."""

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.benchmark_results import (
    ADAPTERS,
    ORDERS,
    Results,
    best_of,
    by_mean,
    mean_text,
    name_of,
    signed,
    with_interval,
)
from itta.metrics.accuracy import mean
from itta.metrics.significance import Run, compare_rows
from itta.report.layouts import Row
from itta.report.tables import Table

TRAININGS = ("erm", "itta")  # whose models the adapters ran on


def pairs_of(results: Results, order: str) -> list[Row]:
    """Models of ERM and ITTA with every adapter in one order of the stream."""
    return [
        row
        for row in results.rows
        if row.algorithm in TRAININGS and row.adapter != "source" and results.order(row) == order
        and row == results.find(row.algorithm, row.adapter, order)
    ]  # fmt: skip


def adapter_table(results: Results, order: str, data: str) -> Table:
    """Every adapter on the models of ERM and of ITTA, in one order of the stream; ``data`` is named in the title."""
    names = list(dict.fromkeys(row.adapter for row in by_mean(results, pairs_of(results, order))))
    heads = {"erm": "ERM's models", "itta": "ITTA's models"}
    trainings = [name for name in TRAININGS if results.find(name)]
    lines = []
    for adapter in ("source", *names):
        line, found = [ADAPTERS.get(adapter, adapter)], []
        for training in trainings:
            plain, row = results.find(training), results.find(training, adapter, order)
            found.append(row)
            gain = with_interval(results.difference(row, plain)) if row and plain and row != plain else ""
            line += [mean_text(results, row) if row else "–", gain]
        both = found if len(found) == 2 and all(found) else None
        lines.append([*line, with_interval(results.difference(both[1], both[0])) if both else ""])  # type: ignore[arg-type]
    columns = [f"{ORDERS.get(order, order)}, %"]
    for training in trainings:
        columns += [heads[training], "gain (95 %)" if training == "erm" else "gain (95 %) "]
    title = f"Test-time methods on {data}, {ORDERS.get(order, order)}"
    return Table(title, [*columns, "ITTA's over ERM's (95 %)"], lines)


def adapter_sentences(results: Results, order: str) -> Iterator[str]:
    """What the table of the adapters means: the best pair, our pair, and adapters that gain or lose on all targets."""
    rows, erm = pairs_of(results, order), results.find("erm")
    if erm is None or not rows:
        yield "Models of ERM without adaptation are missing, so there is nothing to compare."
        return
    best = best_of(results, [*rows, erm])
    if best == erm:
        yield "No pair has a higher mean than ERM without adaptation."
    elif best:
        lead = with_interval(results.difference(best, erm))
        yield f"The best pair is **{name_of(best)}**: {mean_text(results, best)} %, {lead} points over ERM alone."
        plain = results.find(best.algorithm)
        changes = changes_of(results, best, plain) if plain else {}
        if changes and min(changes.values()) < 0:
            worst = min(changes, key=lambda target: changes[target])
            yield (
                f"Adapting by {ADAPTERS.get(best.adapter, best.adapter)} loses on {worst.partition('/')[2]}: "
                f"{signed(changes[worst])} points beside the same models without adaptation."
            )
    ours = results.find("itta", "guarded itta+", order)
    if ours and ours != best:
        yield f"ITTA's training + `itta+` is {with_interval(results.difference(ours, erm))} points over ERM alone."
    kinds = {"gain on every target": 1, "lose on every target": -1}
    for training in TRAININGS:
        plain = results.find(training)
        for words, sign in kinds.items() if plain else ():
            same = [row.adapter for row in rows if row.algorithm == training and one_sided(results, row, plain, sign)]  # type: ignore[arg-type]
            if same:
                of = "ERM's" if training == "erm" else "ITTA's"
                yield f"On {of} models, these methods {words}: {', '.join(ADAPTERS.get(a, a) for a in same)}."


def both_orders(results: Results) -> str:
    """The best pair over all orders of the stream, and our own pair, beside ERM alone."""
    erm = results.find("erm")
    pairs = {row.label: [results.find(row.algorithm, row.adapter, order) for order in ORDERS] for row in results.rows}
    names = {row.label: name_of(row) for row in pairs_of(results, "iid")}
    values = {
        label: over_orders([results.values[row.label] for row in pairs[label] if row])
        for label in names
        if all(pairs[label])
    }
    if erm is None or not values:
        return "No method ran in all orders."
    found = {c.row: c for c in compare_rows({**values, erm.label: results.values[erm.label]}, erm.label)}
    best = max(found, key=lambda label: found[label].difference)
    text = f"The best pair is **{names[best]}**, {with_interval(found[best])} points over ERM alone."
    ours = [label for label, name in names.items() if name == "ITTA's training + `itta+`" and label in found]
    for label in ours if best not in ours else ():
        text += f" {names[label]} is {with_interval(found[label])} points over ERM alone."
    return text


def over_orders(values: Sequence[Mapping[str, Mapping[Run, float]]]) -> dict[str, dict[Run, float]]:
    """The mean of several rows, target by target and run by run."""
    first, *others = values
    return {
        target: {
            run: mean([v, *(o[target][run] for o in others)])
            for run, v in runs.items()
            if all(run in o.get(target, {}) for o in others)
        }
        for target, runs in first.items()
    }


def changes_of(results: Results, row: Row, plain: Row) -> dict[str, float]:
    """The mean difference on each target."""
    found = {}
    for target, runs in results.values[row.label].items():
        base = results.values[plain.label].get(target, {})
        shared = [runs[key] - base[key] for key in runs if key in base]
        if shared:
            found[target] = mean(shared)
    return found


def one_sided(results: Results, row: Row, plain: Row, sign: int) -> bool:
    """Whether the mean difference has this sign on every target."""
    changes = changes_of(results, row, plain).values()
    return bool(changes) and all(sign * change > 0 for change in changes)
