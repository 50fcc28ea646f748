"""Selection: which checkpoint and which hyper-parameters count. DomainBed's three rules.

In Search of Lost Domain Generalization. Gulrajani, Lopez-Paz, ICLR 2021. https://arxiv.org/abs/2007.01434

Every rule looks at the model as trained: validation images are never adapted to. An adapter is judged afterwards, on
the checkpoint that was chosen for its model. If two checkpoints are equally good, the earlier step and the lower
hyper-parameter seed win.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from itta.metrics.accuracy import mean
from itta.records import Record
from itta.registry import look_up

Key = tuple[int, ...]  # (trial seed,) or (trial seed, hyper-parameter seed, …)


@dataclass(frozen=True)
class ChosenCheckpoint:
    """A chosen checkpoint, by its record, and the accuracy that it was chosen for."""

    record: Record
    validation: float


# (records of a run with this target, records of runs that also leave out one source domain, the target) -> a checkpoint
Rule = Callable[[Sequence[Record], Sequence[Record], str], ChosenCheckpoint | None]


@dataclass(frozen=True)
class Selection:
    """A rule, and the words for it in a report."""

    rule: Rule
    caption: str  # the numbers of a table are those of the …
    missing: str = "no validation"  # stands in a cell if the rule can choose nothing
    needs: str = ""  # a note below the table then: the runs that the rule needs


def training_domain(own: Sequence[Record], pairs: Sequence[Record], target: str) -> ChosenCheckpoint | None:
    """The checkpoint with the best mean accuracy on the held-out images of the source domains."""
    return best_choice([ChosenCheckpoint(r, a) for r in own if (a := source_validation(r)) is not None])


def oracle(own: Sequence[Record], pairs: Sequence[Record], target: str) -> ChosenCheckpoint | None:
    """The last checkpoint, valued by the held-out images of the target: it looks at labels of the target."""
    last = max(own, key=lambda r: r.step, default=None)
    held_out = split_of(last, (target,), "out") if last else []
    return ChosenCheckpoint(last, mean(held_out)) if last and held_out else None


def leave_one_domain_out(own: Sequence[Record], pairs: Sequence[Record], target: str) -> ChosenCheckpoint | None:
    """The step at which models trained without one more domain are best, on average, on that domain."""
    left_out: dict[int, dict[str, float]] = defaultdict(dict)
    for r in pairs:
        (domain,) = (d for d in r.trial.test_domains if d != target)
        for accuracy in split_of(r, (domain,), "in"):
            left_out[r.step][domain] = accuracy
    choices = []
    for r in own:
        found = left_out[r.step]
        if found.keys() == {*r.trial.train_domains}:
            choices.append(ChosenCheckpoint(r, mean(list(found.values()))))
    return best_choice(choices)


SELECTIONS: dict[str, Selection] = {
    "training-domain": Selection(training_domain, "checkpoint by training-domain validation"),
    "leave-one-domain-out": Selection(
        leave_one_domain_out,
        "checkpoint by leave-one-domain-out validation",
        "no pair runs",
        "leave-one-domain-out needs runs that leave out each source domain too, at the same steps",
    ),
    "oracle": Selection(oracle, "last checkpoint, chosen by the target's own held-out images (oracle)"),
}


def find_selection(name: str) -> Selection:
    return look_up("selection", name, SELECTIONS)


def best_choice(choices: Sequence[ChosenCheckpoint]) -> ChosenCheckpoint | None:
    return max(sorted(choices, key=lambda c: c.record.step), key=lambda c: c.validation, default=None)


def source_validation(r: Record) -> float | None:
    """Mean accuracy on the held-out images of the source domains; None if it was not measured on all of them."""
    found = split_of(r, r.trial.train_domains, "out")
    return mean(found) if found else None


def split_of(r: Record, domains: Sequence[str], split: str) -> list[float]:
    """The accuracy on one split of each domain; empty if a domain lacks it."""
    found = [r.accuracy.get(d, {}).get(split) for d in domains]
    return [] if None in found else [a for a in found if a is not None]


def choose_checkpoints(
    own: Sequence[Record], pairs: Sequence[Record], target: str, rule: Rule
) -> dict[Key, ChosenCheckpoint]:
    """A checkpoint for every run of a search, by trial seed and hyper-parameter seed."""
    by_run: dict[str, tuple[list[Record], list[Record]]] = {}
    for records, place in ((own, 0), (pairs, 1)):
        for r in records:
            by_run.setdefault(r.trial.settings_key, ([], []))[place].append(r)
    choices: dict[Key, ChosenCheckpoint] = {}
    for mine, others in by_run.values():
        choice = rule(mine, others, target)
        if choice:
            trial = choice.record.trial
            key: Key = (trial.trial_seed, trial.hparams_seed)
            while key in choices:  # runs with the same seeds that differ in another setting
                key = (*key[:2], (*key, 0)[2] + 1)
            choices[key] = choice
    return dict(sorted(choices.items()))


def best_of_search(choices: Mapping[Key, ChosenCheckpoint]) -> dict[Key, ChosenCheckpoint]:
    """The choice with the best hyper-parameters, for each trial seed."""
    found: dict[Key, ChosenCheckpoint] = {}
    for (seed, *_), choice in sorted(choices.items()):
        if (seed,) not in found or choice.validation > found[seed,].validation:
            found[seed,] = choice
    return found
