"""The layout of everything recorded: its rows and columns are those of the records."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from itta.records import Record
from itta.records.domainbed import dataset_name
from itta.records.values import as_written, has_settings, hashable, without_counts
from itta.report.layouts.base import Average, Column, Layout, Row, with_average


def everything_recorded(records: Sequence[Record]) -> Layout:
    """A row for each method, adapter and setting of the records, a column for each target."""
    columns = columns_of(records)
    datasets = {c.dataset: tuple(o for o in columns if o.dataset == c.dataset) for c in columns}
    laid: list[Column | Average] = []
    for dataset, of in datasets.items():
        label = f"{dataset} avg." if len(datasets) > 1 else "Avg."
        laid += with_average(of, label) if len(of) > 1 else of
    return Layout("Everything recorded", rows_of(records), tuple(laid))


def columns_of(records: Sequence[Record]) -> tuple[Column, ...]:
    """A column for each target and its sources. Runs that only serve leave-one-domain-out selection have no column."""
    every: dict[str, set[str]] = {}
    places: dict[tuple[str, tuple[str, ...], str], bool] = {}  # whether a run measures it for its own sake
    trials = {r.trial.key: r.trial for r in records}.values()
    runs = {(dataset_name(t.dataset), frozenset(t.train_domains), t.test_domains) for t in trials}
    for trial in trials:
        dataset, train, test = dataset_name(trial.dataset), trial.train_domains, trial.test_domains
        every.setdefault(dataset, set()).update(train, test)
        # With three domains, two targets mean a pair or a single source: a pair if a run has one more source.
        with_one_more = ((dataset, frozenset({*train, *test} - {target}), (target,)) for target in test)
        serves = len(test) == 2 and (len(train) > 1 or any(run in runs for run in with_one_more))
        for target in test:
            place = dataset, tuple(sorted(train)), target
            places[place] = places.get(place, False) or not serves

    def label(dataset: str, sources: tuple[str, ...], target: str) -> str:
        whole = {*sources, target} == every[dataset]
        return " ".join([dataset] * (len(every) > 1) + [target if whole else f"{'+'.join(sources)}→{target}"])

    def order(place: tuple[str, tuple[str, ...], str]) -> tuple[Any, ...]:
        dataset, sources, target = place
        return dataset, sources if len(sources) == 1 else (), target, sources

    made_for = {dataset for (dataset, _, _), own in places.items() if own}
    kept = [place for place, own in places.items() if own or place[0] not in made_for]
    return tuple(Column(label(*place), *place) for place in sorted(kept, key=order))


def rows_of(records: Sequence[Record]) -> tuple[Row, ...]:
    """A row for each algorithm as trained, then one for each of its adapters; labels name the settings that differ."""
    rows: list[Row] = []
    for algorithm in sorted({r.trial.algorithm for r in records}):
        mine = [r for r in records if r.trial.algorithm == algorithm]
        overridden = sorted({name for r in mine for name in r.trial.overrides})
        for model in setting_variants({k: r.hparams.get(k) for k in overridden} for r in mine):
            same = [r for r in mine if has_settings(r.hparams, model)]
            adapters = sorted({r.adapter for r in same}, key=lambda a: (a != "source", a))
            for adapter in adapters:
                adapted = [r for r in same if r.adapter == adapter]
                rows += [
                    Row(row_label(algorithm, adapter, model, {**s, **stream}), algorithm, adapter, model, s, stream)
                    for s in setting_variants(without_counts(r.adapter_hparams) for r in adapted)
                    for stream in orders_of([r for r in adapted if has_settings(r.adapter_hparams, s)])
                ]
    return tuple(rows)


def orders_of(adapted: Sequence[Record]) -> list[dict[str, Any]]:
    """The orders in which the images came, if there is more than one."""
    return setting_variants({"order": r.stream.get("order")} for r in adapted)


def setting_variants(settings: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The different settings, each reduced to the values that differ, sorted by value.

    >>> setting_variants([{"lr": 1, "steps": 10}, {"lr": 1, "steps": 2}, {"lr": 1, "steps": 10}])
    [{'steps': 2}, {'steps': 10}]
    >>> setting_variants([{"lr": 1}])
    [{}]
    """
    different = {hashable(s): s for s in settings}
    names = dict.fromkeys(k for s in different.values() for k in s)
    differing = [k for k in names if len({hashable(s.get(k)) for s in different.values()}) > 1]

    def order(s: Mapping[str, Any]) -> list[tuple[bool, Any]]:
        return [(not is_number(v), v if is_number(v) else str(v)) for v in s.values()]

    return sorted(({k: s.get(k) for k in differing} for s in different.values()), key=order)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def row_label(algorithm: str, adapter: str, model: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    parts = [(algorithm, model), (adapter, settings)] if adapter != "source" else [(algorithm, model)]
    return " + ".join(name + in_brackets(values) for name, values in parts)


def in_brackets(settings: Mapping[str, Any]) -> str:
    text = ", ".join(f"{k}={as_written(v)}" for k, v in settings.items())
    return f" ({text})" if text else ""
