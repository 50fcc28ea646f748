"""Which run and which checkpoint counts: the three rules of DomainBed.

In Search of Lost Domain Generalization. Gulrajani, Lopez-Paz, ICLR 2021. https://arxiv.org/abs/2007.01434

All look at the model as it was trained: validation images are never adapted to. An adapter is judged afterwards, on the
checkpoint that was chosen for its model. A tie goes to the earlier step and the lower hyper-parameter seed.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from itta.metrics.accuracy import mean
from itta.records import Record

Key = tuple[int, ...]  # (trial seed,) or (trial seed, hyper-parameter seed, …)


@dataclass(frozen=True)
class Choice:
    """A checkpoint, by its record, and what it was chosen for."""

    record: Record
    validation: float


# (records of a run with this target, of runs that also leave out one source domain, the target) -> its checkpoint
Rule = Callable[[Sequence[Record], Sequence[Record], str], Choice | None]


def training_domain(own: Sequence[Record], pairs: Sequence[Record], target: str) -> Choice | None:
    """The checkpoint with the best mean accuracy on the held-out images of the source domains."""
    return best([Choice(r, mean(a)) for r in own if (a := split_of(r, r.trial.train_domains, "out"))])


def oracle(own: Sequence[Record], pairs: Sequence[Record], target: str) -> Choice | None:
    """The last checkpoint, valued by the held-out images of the target: it looks at the target's labels."""
    last = max(own, key=lambda r: r.step, default=None)
    held_out = split_of(last, (target,), "out") if last else []
    return Choice(last, mean(held_out)) if last and held_out else None


def leave_one_domain_out(own: Sequence[Record], pairs: Sequence[Record], target: str) -> Choice | None:
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
            choices.append(Choice(r, mean(list(found.values()))))
    return best(choices)


SELECTIONS: dict[str, Rule] = {
    "training-domain": training_domain,
    "leave-one-domain-out": leave_one_domain_out,
    "oracle": oracle,
}


def best(choices: Sequence[Choice]) -> Choice | None:
    return max(sorted(choices, key=lambda c: c.record.step), key=lambda c: c.validation, default=None)


def split_of(r: Record, domains: Sequence[str], split: str) -> list[float]:
    """The accuracies on one split, of all the domains or not at all."""
    found = [r.accuracy.get(d, {}).get(split) for d in domains]
    return [] if None in found else [a for a in found if a is not None]


def choose(own: Sequence[Record], pairs: Sequence[Record], target: str, rule: Rule) -> dict[Key, Choice]:
    """A checkpoint for every run of the search, by trial seed and hyper-parameter seed."""
    by_run: dict[str, tuple[list[Record], list[Record]]] = {}
    for records, place in ((own, 0), (pairs, 1)):
        for r in records:
            by_run.setdefault(r.trial.settings_key, ([], []))[place].append(r)
    choices: dict[Key, Choice] = {}
    for mine, others in by_run.values():
        choice = rule(mine, others, target)
        if choice:
            trial = choice.record.trial
            key: Key = (trial.trial_seed, trial.hparams_seed)
            while key in choices:  # runs that differ in something else
                key = (*key[:2], (*key, 0)[2] + 1)
            choices[key] = choice
    return dict(sorted(choices.items()))


def best_of_search(choices: Mapping[Key, Choice]) -> dict[Key, Choice]:
    """The best hyper-parameters of each trial seed."""
    found: dict[Key, Choice] = {}
    for (seed, *_), choice in sorted(choices.items()):
        if (seed,) not in found or choice.validation > found[seed,].validation:
            found[seed,] = choice
    return found
