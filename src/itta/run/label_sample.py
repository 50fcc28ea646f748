"""Choose the images of a target that are worth a label: changed answers first, then a sample for the level."""

import numpy as np

from itta.errors import InputError
from itta.metrics.outcome import Outcome
from itta.metrics.stratified import allocate
from itta.records.label_plan import CHANGED, Plan, Sampled, plan_id
from itta.run.compare import Comparison
from itta.seeds import derive_seed

FOR_CHANGED = 0.6  # of the budget, at most, unless no other image is left
SURENESS = ("unsure", "middling", "sure")  # strata of equal size among the images with an unchanged answer


def draw_sample(comparison: Comparison, classes: tuple[str, ...], model: str, budget: int, seed: int = 0) -> Plan:
    """Plan a check. A larger budget with the same seed contains the images of a smaller one.

    ``model`` identifies the model, such as the checksum of its weights.
    """
    if budget < 1:
        raise InputError(f"--budget must be at least 1, got {budget}.")
    before, after = comparison.before, comparison.after
    strata = cut_into_strata(before, after)
    sizes = {name: len(places) for name, places in strata.items()}
    for_changed = min(sizes[CHANGED], round(FOR_CHANGED * budget))
    level = {name: size for name, size in sizes.items() if name != CHANGED}
    given = allocate(budget - for_changed, level, {name: deviation(after, strata[name]) for name in level})
    given[CHANGED] = min(sizes[CHANGED], budget - sum(given.values()))
    rng = {name: np.random.RandomState(derive_seed(seed, "label", name)) for name in (*strata, "order")}
    drawn = {name: rng[name].permutation(places)[: given[name]] for name, places in strata.items()}
    rest = [(name, place) for name in level for place in drawn[name]]
    order = [(CHANGED, place) for place in drawn[CHANGED]] + [rest[i] for i in rng["order"].permutation(len(rest))]
    names = comparison.target.images.names
    sample = tuple(
        Sampled(int(i), names[i], stratum, int(before.predictions[place]), int(after.predictions[place]))
        for stratum, place in order
        for i in (after.indices[place],)
    )
    name, adapter = comparison.target.name, comparison.adapter.name
    return Plan(plan_id(model, name, adapter, len(names), seed), name, adapter, classes, sizes, sample)


def cut_into_strata(before: Outcome, after: Outcome) -> dict[str, np.ndarray]:
    """Map each stratum to positions in the stream: changed answers, and the others in three parts by confidence."""
    changed = before.predictions != after.predictions
    same = np.flatnonzero(~changed)
    by_confidence = same[np.argsort(after.confidence[same], kind="stable")]
    parts = zip(SURENESS, np.array_split(by_confidence, len(SURENESS)))
    return {CHANGED: np.flatnonzero(changed)} | {name: np.sort(part) for name, part in parts}


def deviation(outcome: Outcome, places: np.ndarray) -> float:
    """The standard deviation of "right" that the confidence of some answers suggests."""
    p = float(outcome.confidence[places].mean()) if len(places) else 0.0
    return (p * (1 - p)) ** 0.5
