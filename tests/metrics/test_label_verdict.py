"""What the labels of a check say."""

from itta.metrics.label_verdict import judge_labels
from itta.records.label_plan import Plan, Sampled, plan_id


def test_changed_images_decide_and_strata_are_weighted() -> None:
    changed = tuple(Sampled(i, f"{i}.png", "changed", 0, 1) for i in range(20))
    same = tuple(Sampled(i, f"{i}.png", "sure", 0, 0) for i in range(20, 30))
    plan = Plan(plan_id(0), "night", "itta+", ("cat", "dog"), {"changed": 40, "sure": 160}, (*changed, *same))
    checked = judge_labels(plan, dict.fromkeys(range(15), 1) | dict.fromkeys(range(20, 30), 0))
    assert (checked.labels, checked.planned) == (25, 30)
    assert (checked.verdict.decision, checked.verdict.labels, checked.verdict.changed) == ("helps", 15, 40)
    assert (checked.before.value, checked.after.value) == (0.8, 1.0)
    assert checked.counted == {"cat": 12, "dog": 3}  # 0.8 of the images are of the stratum "sure", all cats
    assert judge_labels(plan, dict.fromkeys(range(15), 1)).counted == {}  # changed images alone are no sample of all
    nothing = judge_labels(plan, {})
    assert nothing.verdict.decision == "undecided"
    assert nothing.after.high - nothing.after.low > 0.7
