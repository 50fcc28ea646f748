"""The labelling page: one HTML file on which a person names the class of each image, by keyboard or by click."""

from collections.abc import Sequence
from pathlib import Path

import itta
from itta.records.label_plan import COLUMNS, Plan
from itta.report.page.document import HERE, content_policy, environment, save_page
from itta.text import as_cell


def write_labelling_page(out: Path, plan: Plan, pictures: Sequence[str]) -> Path:
    """Write the page; ``pictures`` has a data URI for each image of the plan's sample.

    The page does not show the model's answers: they would sway the person.
    """
    script = (HERE / "labelling.js").read_text(encoding="utf-8")
    images = [
        {"number": s.number, "image": as_cell(s.image), "picture": picture}
        for s, picture in zip(plan.sample, pictures, strict=True)
    ]
    page = (
        environment()
        .get_template("labelling.html")
        .render(
            title=f"Label {plan.target}",
            version=itta.__version__,
            policy=content_policy(script),
            style=(HERE / "page.css").read_text(encoding="utf-8")
            + (HERE / "labelling.css").read_text(encoding="utf-8"),
            script=script,
            data={
                "plan": plan.id,
                "columns": COLUMNS,
                "classes": [{"name": name, "cell": as_cell(name)} for name in plan.classes],
                "images": images,
            },
        )
    )
    return save_page(out, page)
