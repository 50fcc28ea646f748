"""What the tables are: rows that say which records they take, columns that say where those are measured.

A table of the paper is a value here, not a function; `found` makes the same kind of value from whatever records hold.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from itta.records import Record
from itta.records.collection import shown
from itta.records.domainbed import ENVIRONMENTS, dataset_name
from itta.trial import Trial

Summary = Literal["Avg.", "Top5", "Score"]

# What "Ours" means in the paper: a row that does not say otherwise means these.
MODEL_DEFAULTS: dict[str, dict[str, Any]] = {
    "itta": {"alpha": 1.0, "fw_depth": 10, "view": "mixstyle"},
    "consistency": {"alpha": 1.0, "view": "mixstyle"},
}
ADAPTER_DEFAULTS: dict[str, dict[str, Any]] = {
    "itta": {
        "objective": "learned",
        "scope": "blocks",
        "steps": 1,
        "episodic": False,
        "depth": 5,
        "blocks": (),
        "per": "pixel",
    },
}


@dataclass(frozen=True)
class Row:
    """A trained model and what happens to it at test time; settings that are not named may be any."""

    label: str
    algorithm: str
    adapter: str = "source"
    model: Mapping[str, Any] = field(default_factory=dict)  # hyper-parameters of training
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the adapter

    def takes_model(self, r: Record) -> bool:
        known = {**MODEL_DEFAULTS.get(self.algorithm, {}), **r.hparams}
        return r.trial.algorithm == self.algorithm and has(known, self.model)

    def takes_adapter(self, r: Record) -> bool:
        known = {**ADAPTER_DEFAULTS.get(self.adapter, {}), **r.adapter_hparams}
        return r.adapter == self.adapter and has(known, self.settings)


@dataclass(frozen=True)
class Column:
    """One target domain, reached from the named source domains."""

    label: str
    dataset: str
    sources: tuple[str, ...]
    target: str

    def takes(self, trial: Trial) -> bool:
        """A run to be judged here."""
        return (
            self.target in trial.test_domains
            and {*trial.train_domains} == {*self.sources}
            and dataset_name(trial.dataset) == self.dataset
        )

    def takes_pair(self, trial: Trial) -> bool:
        """A run that leaves out one of the source domains as well, by which leave-one-domain-out selects."""
        left_out = {*self.sources} - {*trial.train_domains}
        return (
            len(left_out) == 1
            and {*trial.test_domains} == {self.target, *left_out}
            and {*trial.train_domains} < {*self.sources}
            and dataset_name(trial.dataset) == self.dataset
        )


@dataclass(frozen=True)
class Average:
    """The mean over several columns, trial by trial."""

    label: str
    of: tuple[Column, ...]


@dataclass(frozen=True)
class Layout:
    title: str
    rows: tuple[Row, ...]
    columns: tuple[Column | Average, ...]
    summaries: tuple[Summary, ...] = ()  # over the columns


def has(settings: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether settings have the wanted values; one that is not there counts as None."""
    return all(plain(settings.get(name)) == plain(value) for name, value in wanted.items())


def plain(value: Any) -> Any:
    """A value as it comes back from JSON, and hashable."""
    if isinstance(value, Mapping):
        return tuple(sorted((k, plain(v)) for k, v in value.items()))
    return tuple(map(plain, value)) if isinstance(value, (list, tuple)) else value


def ours(label: str, algorithm: str = "itta", adapter: str = "itta", **changes: Any) -> Row:
    """A row with the paper's settings, but for the changes; each goes where a setting of its name is."""
    model, settings = MODEL_DEFAULTS.get(algorithm, {}), ADAPTER_DEFAULTS.get(adapter, {})
    assert changes.keys() <= {*model, *settings}, f"{label}: a change that changes nothing"
    return Row(
        label,
        algorithm,
        adapter,
        {k: changes.get(k, v) for k, v in model.items()},
        {k: changes.get(k, v) for k, v in settings.items()},
    )


def leave_one_out(dataset: str, labels: Sequence[str]) -> tuple[Column, ...]:
    domains = ENVIRONMENTS[dataset]
    assert len(domains) == len(labels)
    return tuple(Column(label, dataset, others(domains, d), d) for label, d in zip(labels, domains))


def others(domains: Sequence[str], target: str) -> tuple[str, ...]:
    return tuple(d for d in domains if d != target)


def with_average(columns: tuple[Column, ...], label: str = "Avg.") -> tuple[Column | Average, ...]:
    return (*columns, Average(label, columns))


def one_to_one(dataset: str) -> tuple[Column, ...]:
    """Every domain from every other, labelled by first letters: A→C."""
    domains = ENVIRONMENTS[dataset]
    return tuple(
        Column(f"{a[0]}→{b[0]}".upper(), dataset, (a,), b) for a in domains for b in domains if a != b
    )  # fmt: skip


LABELS: dict[str, tuple[str, ...]] = {  # the paper's names of the domains
    "PACS": ("Art", "Cartoon", "Photo", "Sketch"),
    "VLCS": ("Caltech", "LabelMe", "Sun", "VOC"),
    "OfficeHome": ("Art", "Clipart", "Product", "Real"),
    "TerraIncognita": ("L100", "L38", "L43", "L46"),
    "DomainNet": ("Clipart", "Infograph", "Painting", "Quickdraw", "Real", "Sketch"),
}
METHODS = (
    "ERM", "IRM", "GroupDRO", "Mixup", "MLDG", "CORAL", "MMD", "DANN", "CDANN", "MTL", "SagNet", "ARM", "VREx",
    "RSC", "SelfReg", "MixStyle", "Fish", "SD", "CAD", "CondCAD", "Fishr",
)  # fmt: skip
COMPARED = (*(Row(name, name.lower()) for name in METHODS), ours("Ours"))
PACS = with_average(leave_one_out("PACS", LABELS["PACS"]))
WITHOUT_TTT = ours("Ours w/o TTT", adapter="source")

TABLES: dict[str, Layout] = {
    "multi-source": Layout(
        "Multi-source domain generalization",
        COMPARED,
        tuple(Average(dataset, leave_one_out(dataset, labels)) for dataset, labels in LABELS.items()),
        ("Avg.", "Top5", "Score"),
    ),
    **{
        dataset.lower(): Layout(f"{dataset}, by target domain", COMPARED, with_average(leave_one_out(dataset, labels)))
        for dataset, labels in LABELS.items()
    },
    "single-source": Layout("Single-source domain generalization, PACS", COMPARED, with_average(one_to_one("PACS"))),
    "ttt": Layout(
        "Test-time training methods, PACS",
        (
            ours("Baseline", "consistency", "source"),
            Row("TTT", "ttt", "ttt"),
            Row("MT3", "mt3", "mt3"),
            ours("TENT", "consistency", "tent"),
            ours("Ours"),
        ),
        PACS,
    ),
    "ablation": Layout(
        "Test-time objectives, and parameters that move, PACS",
        (
            ours("Ours"),
            ours("Ours w/o f_w", "consistency", objective="plain"),
            ours("Ours w/ Ent.", "consistency", objective="entropy"),
            ours("Ours w/ Rot.", "ttt", objective="rotation"),
            WITHOUT_TTT,
            ours("Ours w/ All", scope="all"),
            ours("Ours w/ BN", scope="norm"),
        ),
        PACS,
    ),
    "alpha": Layout(
        "Weight α of the consistency loss, PACS",
        tuple(ours(f"α = {a:g}", alpha=a) for a in (0.1, 1.0, 10.0, 100.0)),
        PACS,
    ),
    "augmentation": Layout(
        "Noise on the features as the second view, PACS",
        (
            Row("ERM", "erm"),
            ours("Ours w/o f_w and TTT", "consistency", "source", view="noise"),
            ours("Ours w/o f_w", "consistency", view="noise", objective="plain"),
            ours("Ours w/o TTT", adapter="source", view="noise"),
            ours("Ours", view="noise"),
        ),
        PACS,
    ),
    "steps": Layout(
        "Steps at test time, PACS",
        (
            ours("1 step"),
            ours("2 steps", steps=2),
            ours("3 steps", steps=3),
            ours("episodic", episodic=True),
        ),
        PACS,
    ),
    "structures": Layout(
        "Layers of f_w and of f_Θ, PACS",
        (
            *(ours(f"f_w, {n} layer{'s' * (n > 1)}", fw_depth=n) for n in (1, 5, 10, 15)),
            *(ours(f"f_Θ, {n} layer{'s' * (n > 1)}", depth=n) for n in (1, 5, 10, 15)),
        ),
        PACS,
    ),
    "locations": Layout(
        "Place of the adaptive block, PACS",
        tuple(ours(f"after block {n}", blocks=(f"layer{n}",)) for n in (1, 2, 3, 4)),
        PACS,
    ),
    "learnable-loss": Layout(
        "Learnable losses, PACS",
        (
            Row("MetaReg", "metareg"),
            Row("Feature-Critic", "feature_critic"),
            Row("TTT++", "ttt++", "ttt++"),
            WITHOUT_TTT,
            ours("Ours"),
        ),
        PACS,
    ),
}


def found(records: Sequence[Record]) -> Layout:
    """A table of everything the records hold: a row for each method and setting, a column for each target."""
    columns = found_columns(records)
    datasets = {c.dataset: tuple(o for o in columns if o.dataset == c.dataset) for c in columns}
    laid: list[Column | Average] = []
    for dataset, of in datasets.items():
        label = f"{dataset} avg." if len(datasets) > 1 else "Avg."
        laid += with_average(of, label) if len(of) > 1 else of
    return Layout("Everything recorded", found_rows(records), tuple(laid))


def found_columns(records: Sequence[Record]) -> tuple[Column, ...]:
    """The targets, each from its sources; runs that serve to select by leave-one-domain-out make no columns."""
    every: dict[str, set[str]] = {}
    places: dict[tuple[str, tuple[str, ...], str], bool] = {}  # whether a run was made for it
    trials = {r.trial.key: r.trial for r in records}.values()
    runs = {(dataset_name(t.dataset), frozenset(t.train_domains), t.test_domains) for t in trials}
    for trial in trials:
        dataset, train, test = dataset_name(trial.dataset), trial.train_domains, trial.test_domains
        every.setdefault(dataset, set()).update(train, test)
        # of three domains, two left out may also mean: from a single source; not where a run with one more is there
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


def found_rows(records: Sequence[Record]) -> tuple[Row, ...]:
    """Algorithms by name, each as trained and then adapted; settings are named where they differ."""
    rows: list[Row] = []
    for algorithm in sorted({r.trial.algorithm for r in records}):
        mine = [r for r in records if r.trial.algorithm == algorithm]
        overridden = sorted({name for r in mine for name in r.trial.overrides})
        for model in variants({k: r.hparams.get(k) for k in overridden} for r in mine):
            same = [r for r in mine if has(r.hparams, model)]
            adapters = sorted({r.adapter for r in same}, key=lambda a: (a != "source", a))
            for adapter in adapters:
                settings = [r.adapter_hparams for r in same if r.adapter == adapter]
                rows += [
                    Row(label_of(algorithm, adapter, model, s), algorithm, adapter, model, s)
                    for s in variants(without_counts(s) for s in settings)
                ]
    return tuple(rows)


def without_counts(settings: Mapping[str, Any]) -> dict[str, Any]:
    """An adapter's settings, without what its guard did."""
    return {k: v for k, v in settings.items() if k != "interventions"}


def variants(settings: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The different settings, by those values alone that differ, in the order of the values.

    >>> variants([{"lr": 1, "steps": 10}, {"lr": 1, "steps": 2}, {"lr": 1, "steps": 10}])
    [{'steps': 2}, {'steps': 10}]
    >>> variants([{"lr": 1}])
    [{}]
    """
    different = {plain(s): s for s in settings}
    names = dict.fromkeys(k for s in different.values() for k in s)
    telling = [k for k in names if len({plain(s.get(k)) for s in different.values()}) > 1]

    def order(s: Mapping[str, Any]) -> list[tuple[bool, Any]]:
        return [(not is_number(v), v if is_number(v) else str(v)) for v in s.values()]

    return sorted(({k: s.get(k) for k in telling} for s in different.values()), key=order)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def label_of(algorithm: str, adapter: str, model: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    parts = [(algorithm, model), (adapter, settings)] if adapter != "source" else [(algorithm, model)]
    return " + ".join(name + named(values) for name, values in parts)


def named(settings: Mapping[str, Any]) -> str:
    told = ", ".join(f"{k}={shown(v)}" for k, v in settings.items())
    return f" ({told})" if told else ""
