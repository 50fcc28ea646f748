"""itta inspect: the training of a model, and its learned loss."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from itta.cli.own_code import OwnCodeFlags
from itta.cli.screen import Flags, print_json, say, show
from itta.report.tables import Table


def inspect(
    model: Annotated[Positional[Path], arg(metavar="MODEL")],
    out: Path | None = None,
    reach: float = 1.0,
    own: Flags[OwnCodeFlags] = OwnCodeFlags(),
    device: str = "auto",
    json: bool = False,
) -> None:
    """Show the logs of a training and, for a model of ITTA, the shape of its learned loss f_w.

    Example: itta inspect runs/sites --out runs/sites-inside

    Args:
        model: Directory of a trained model.
        out: Also write figures and inspect.json to this directory.
        reach: Sample f_w from -reach to reach, if the model is too old to know which inputs f_w saw in training.
        device: Device that computes: cpu, cuda, cuda:N or mps; auto takes a GPU if torch finds one.
        json: Print the result as JSON.
    """
    from itta.explain.inspect import inspect_model

    result = inspect_model(model, out, reach, own.given(), device)
    if json:
        print_json(result)
        return
    columns = ["", "values", "mean", "first tenth", "last tenth"]
    rows = [
        [name, str(v["values"]), *(f"{v[key]:.4g}" for key in ("mean", "first_tenth", "last_tenth"))]
        for name, v in result["training"].items()
    ]
    source = result["logs_from"] or "no file: nothing was logged"
    show(Table(f"{result['algorithm']}: training, from {source}", columns, rows))
    if result["f_w"]:
        f_w = result["f_w"]
        facts = {**f_w["kinds"], "change since the start": f"{f_w['change_since_start']:.4g}"}
        show(Table(f"f_w, inputs {f_w['range']}", ["dimensions", ""], [[k, str(v)] for k, v in facts.items()]))
    for file in result["files"]:
        say(file)
