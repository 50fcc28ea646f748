"""The inspection of a trained model: the logs of its training, and the shape of ITTA's learned loss f_w."""

import json
import math
from pathlib import Path
from typing import Any

from itta.errors import InputError
from itta.explain.learned_loss import describe_f_w, f_w_inputs, plot_f_w, sample_f_w
from itta.explain.training_logs import curve_summary, plot_curves, read_curves
from itta.files import make_folder, replace_text
from itta.nn.affine_stack import AffineStack
from itta.nn.device import place
from itta.store.model import OwnCode, load_algorithm, read_description


def inspect_model(
    model: Path, out: Path | None = None, reach: float = 1.0, own: OwnCode = OwnCode(), device: str = "cpu"
) -> dict[str, Any]:
    """Return the numbers; with ``out``, also write them and figures into this folder.

    ``reach`` bounds the inputs of f_w, for a model that does not know which inputs f_w saw in training.
    """
    if not 0 < reach < math.inf:
        raise InputError(f"the range of inputs is given by a number above 0, got {reach:g}.")
    trained = place(load_algorithm(read_description(model), own), device)
    curves, source = read_curves(model)
    result: dict[str, Any] = {
        "model": str(model),
        "algorithm": trained.name,
        "logs_from": source,
        "training": {name: curve_summary(values) for name, (_, values) in curves.items()},
        "f_w": None,
    }
    files = []
    if out is not None and curves:
        files.append(plot_curves(out / "training.png", curves))
    f_w = getattr(trained, "f_w", None)
    if isinstance(f_w, AffineStack):
        h, seen = f_w_inputs(trained, reach)
        sampled = sample_f_w(f_w, h)
        span = "seen on source images" if seen else f"±{reach:g}, assumed"
        result["f_w"] = describe_f_w(f_w, sampled) | {"range": span}
        if out is not None:
            title = f"f_w: {f_w.weight.shape[1]} dimensions, {len(f_w.weight)} layers, inputs {span}"
            files.append(plot_f_w(out / "f_w.png", sampled, result["f_w"]["kinds"], title))
    if out is not None:
        make_folder(out)
        replace_text(out / "inspect.json", json.dumps(result, indent=2) + "\n")
        files.append(out / "inspect.json")
    return result | {"files": [str(f) for f in files]}
