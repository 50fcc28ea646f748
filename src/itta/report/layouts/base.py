"""Layouts: rows that say which records they take, columns that say where these are measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from itta.records import Record
from itta.records.domainbed import ENVIRONMENTS, dataset_name
from itta.records.values import has_settings
from itta.trial import Trial

Summary = Literal["Avg.", "Top5", "Score"]

# The settings of the paper's own method. Records of older versions lack some of them, and then mean these values.
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
    """A trained model and its adapter. Settings that a row does not name may have any value."""

    label: str
    algorithm: str
    adapter: str = "source"
    model: Mapping[str, Any] = field(default_factory=dict)  # hyper-parameters of training
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the adapter
    stream: Mapping[str, Any] = field(default_factory=dict)  # of the images that it adapts to
    steps: Mapping[str, int] = field(default_factory=dict)  # of training, by data set

    def takes_model(self, r: Record) -> bool:
        known = {**MODEL_DEFAULTS.get(self.algorithm, {}), **r.hparams}
        return r.trial.algorithm == self.algorithm and has_settings(known, self.model) and self.takes_steps(r.trial)

    def takes_steps(self, trial: Trial) -> bool:
        return not self.steps or self.steps.get(dataset_name(trial.dataset)) == trial.steps

    def takes_adapter(self, r: Record) -> bool:
        known = {**ADAPTER_DEFAULTS.get(self.adapter, {}), **r.adapter_hparams}
        return r.adapter == self.adapter and has_settings(known, self.settings) and has_settings(r.stream, self.stream)


@dataclass(frozen=True)
class Column:
    """One target domain, for models trained on the named source domains."""

    label: str
    dataset: str
    sources: tuple[str, ...]
    target: str

    def takes(self, trial: Trial) -> bool:
        """Whether the results of a run belong into this column."""
        return (
            self.target in trial.test_domains
            and {*trial.train_domains} == {*self.sources}
            and dataset_name(trial.dataset) == self.dataset
        )

    def takes_pair(self, trial: Trial) -> bool:
        """Whether a run leaves out the target and one source domain: leave-one-domain-out selects by such runs."""
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
    summaries: tuple[Summary, ...] = ()  # further columns, computed from all the others


def leave_one_out(dataset: str, labels: Sequence[str]) -> tuple[Column, ...]:
    """A column for each domain of a data set, for models trained on all the others."""
    domains = ENVIRONMENTS[dataset]
    assert len(domains) == len(labels)
    return tuple(Column(label, dataset, without(domains, d), d) for label, d in zip(labels, domains))


def without(domains: Sequence[str], target: str) -> tuple[str, ...]:
    return tuple(d for d in domains if d != target)


def one_to_one(dataset: str) -> tuple[Column, ...]:
    """A column for each pair of domains, from one to the other, labelled by first letters: A→C."""
    domains = ENVIRONMENTS[dataset]
    return tuple(Column(f"{a[0]}→{b[0]}".upper(), dataset, (a,), b) for a in domains for b in domains if a != b)


def with_average(columns: tuple[Column, ...], label: str = "Avg.") -> tuple[Column | Average, ...]:
    return (*columns, Average(label, columns))
