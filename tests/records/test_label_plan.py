"""A plan of a check and its labels, as files that somebody else may have written."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from itta.errors import InputError
from itta.records.label_plan import Plan, Sampled, plan_id, read_labels, read_plan, write_plan


@pytest.fixture
def plan() -> Plan:
    sample = (Sampled(7, "a,b.png", "changed", 0, 1), Sampled(2, "=c.png", "sure", 1, 1))
    return Plan(plan_id("model", 0), "night", "itta+", ("cat", "-dog"), {"changed": 3, "sure": 9}, sample)


def test_a_plan_comes_back(plan: Plan, tmp_path: Path) -> None:
    write_plan(tmp_path, plan)
    assert read_plan(tmp_path) == plan
    assert (plan.images, plan.changed) == (12, 3)


def test_no_plan_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="first run itta check without --labels"):
        read_plan(tmp_path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda v: v.update(sizes={"changed": 3}), "stratum without a size"),
        (lambda v: v["sample"][0].update(after=9), "not one of its classes"),
        (lambda v: v.update(id="../x"), "id"),
        (lambda v: v.pop("classes"), "classes"),
    ],
)
def test_a_damaged_plan_is_refused(plan: Plan, tmp_path: Path, change: Callable[..., object], reason: str) -> None:
    values = json.loads(json.dumps(plan.to_json()))
    change(values)
    (tmp_path / "plan.json").write_text(json.dumps(values))
    with pytest.raises(InputError, match=reason):
        read_plan(tmp_path)


def labels_of(plan: Plan, tmp_path: Path, *rows: str) -> dict[int, int]:
    file = tmp_path / "labels.csv"
    file.write_text("\n".join(["plan,number,image,label", *(row.replace("ID", plan.id) for row in rows)]) + "\n")
    return read_labels(file, plan)


def test_labels_are_read(plan: Plan, tmp_path: Path) -> None:
    assert labels_of(plan, tmp_path, 'ID,7,"a,b.png",cat', "ID,2,'=c.png,'-dog") == {7: 0, 2: 1}
    assert labels_of(plan, tmp_path, "ID,7,a,?", "ID,2,b,cat") == {2: 0}


@pytest.mark.parametrize("rows", [(), ("ID,7,a,?",), ("ID,7,a,",)])
def test_no_label_is_no_verdict(plan: Plan, tmp_path: Path, rows: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match=r"labels\.csv has no label yet: label some images"):
        labels_of(plan, tmp_path, *rows)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("0123456789abcdef,7,a,cat", "belongs to another check"),
        ("ID,8,a,cat", "not in plan.json"),
        ("ID,7,a,cow", "has the label 'cow'; choices: cat"),
        (f"ID,{'9' * 5000},a,cat", "names image '9999"),
        ("ID,7", "lacks one of the columns"),
    ],
)
def test_wrong_labels_are_refused(plan: Plan, tmp_path: Path, row: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        labels_of(plan, tmp_path, row)
