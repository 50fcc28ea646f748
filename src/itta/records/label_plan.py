"""The plan of a check by hand: which images of a target a person labels, how they were sampled, and the labels.

The plan is plan.json. The labels are a CSV file that the labelling page saves: a line for each labelled image.
"""

import csv
import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from itta.errors import InputError
from itta.files import replace_text
from itta.schema import Count, Name, Names, check_schema, conform, damaged, read_bytes, read_json
from itta.text import as_cell

PLAN_FILE = "plan.json"
SCHEMA = 1
CHANGED = "changed"  # the stratum of images with a changed answer
COLUMNS = ("plan", "number", "image", "label")
Id = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]


@dataclass(frozen=True)
class Sampled:
    """An image to label."""

    number: Count  # in the target
    image: Name
    stratum: Name
    before: Count  # the class that the trained model answers
    after: Count  # the class that the adapter answers


@dataclass(frozen=True)
class Plan:
    id: Id  # of model, target, adapter and seed: a larger budget keeps it, and the labels
    target: Name
    adapter: Name
    classes: Names
    sizes: Mapping[str, Count]  # images of each stratum
    sample: tuple[Sampled, ...]  # in the order in which they are labelled: changed ones first, each part at random

    @property
    def images(self) -> int:
        return sum(self.sizes.values())

    @property
    def changed(self) -> int:
        return self.sizes.get(CHANGED, 0)

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Plan":
        check_schema(values, SCHEMA)
        plan = conform(Plan, {k: v for k, v in values.items() if k != "schema"})
        if any(max(s.before, s.after) >= len(plan.classes) for s in plan.sample):
            raise InputError("an answer is not one of its classes")
        if any(s.stratum not in plan.sizes for s in plan.sample):
            raise InputError("an image is of a stratum without a size")
        return plan


def plan_id(*facts: object) -> str:
    """Return the id of a plan, from the facts that decide which images it draws first."""
    return hashlib.sha256(json.dumps([str(f) for f in facts]).encode()).hexdigest()[:16]


def write_plan(folder: Path, plan: Plan) -> Path:
    path = folder / PLAN_FILE
    replace_text(path, json.dumps(plan.to_json()) + "\n")
    return path


def read_plan(folder: Path) -> Plan:
    path = folder / PLAN_FILE
    if not path.is_file():
        raise InputError(
            f"there is no {path}: first run itta check without --labels, or name its directory with --out."
        )
    with damaged(path, "run itta check without --labels again"):
        return Plan.from_json(read_json(path))


def read_labels(path: Path, plan: Plan) -> dict[int, int]:
    """Return the class of each labelled image by its number; an image without a label, or labelled "?", is left out."""
    if not path.is_file():
        raise InputError(f"no file of labels at {path}: save it on the labelling page, and move it there.")
    with damaged(path, "save it again on the labelling page"):
        try:
            rows = list(csv.DictReader(io.StringIO(read_bytes(path).decode("utf-8-sig"))))
        except (UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"not a CSV file: {error}") from error
        known = {str(as_cell(name)): number for number, name in enumerate(plan.classes)}
        planned = {str(s.number) for s in plan.sample}
        found = {}
        for line, row in enumerate(rows, 2):
            if not set(COLUMNS) <= set(row) or None in row.values():
                raise InputError(f"line {line} lacks one of the columns {', '.join(COLUMNS)}")
            if row["plan"] != plan.id:
                raise InputError(f"line {line} belongs to another check ({row['plan']!r}, and this one is {plan.id})")
            if row["number"] not in planned:
                raise InputError(f"line {line} names image {row['number'][:40]!r}, which is not in {PLAN_FILE}")
            if row["label"] in ("", "?"):
                continue
            if row["label"] not in known:
                raise InputError(f"line {line} has the label {row['label']!r}; choices: {', '.join(known)}, ?")
            found[int(row["number"])] = known[row["label"]]
    if not found:
        raise InputError(f"{path} has no label yet: label some images on the page, and save the file again.")
    return found
