"""The answer of a check by hand: accuracy and class frequencies from some labels, and whether adaptation helps."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from itta.metrics.sequential import Verdict, judge_differences
from itta.metrics.stratified import Share, count_classes, estimate_share
from itta.records.label_plan import CHANGED, Plan


@dataclass(frozen=True)
class Checked:
    labels: int
    planned: int
    before: Share  # accuracy of the trained model on all images
    after: Share  # accuracy of the adapter
    verdict: Verdict
    counted: Mapping[str, int]  # class -> images, as if they were drawn at random; empty while a stratum has no label


def judge_labels(plan: Plan, labels: Mapping[int, int]) -> Checked:
    """Judge the labels, class by number of the image, in the order of the plan."""
    before: dict[str, list[bool]] = defaultdict(list)
    after: dict[str, list[bool]] = defaultdict(list)
    classes: dict[str, list[int]] = defaultdict(list)
    for s in plan.sample:
        if s.number in labels:
            before[s.stratum].append(labels[s.number] == s.before)
            after[s.stratum].append(labels[s.number] == s.after)
            classes[s.stratum].append(labels[s.number])
    differences = np.array(after[CHANGED], dtype=float) - np.array(before[CHANGED], dtype=float)
    was, now = (estimate_share({k: np.array(v) for k, v in right.items()}, plan.sizes) for right in (before, after))
    counts = count_classes({k: np.array(v) for k, v in classes.items()}, plan.sizes, len(plan.classes)).tolist()
    counted = dict(zip(plan.classes, counts)) if any(counts) else {}
    return Checked(len(labels), len(plan.sample), was, now, judge_differences(differences, plan.changed), counted)
