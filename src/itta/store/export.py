"""Write a model, or what an adapter has made of it, to a file that runs without us: ONNX, or a torch.export program.

Both take images [B, 3, H, W] in [0, 1], any B, and give logits; the normalisation is inside. A file appears only when
it is complete and answers as the model does.
"""

import io
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from itta import __version__
from itta.adapters import Adapter
from itta.errors import InputError
from itta.files import complete
from itta.nn import Backbone

TOLERANCE = 1e-5
METADATA = "itta.json"  # of a torch.export program
Run = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Exported:
    path: Path
    format: str
    difference: float  # the largest from the model's logits; where these exceed 1, as a share of them


def export_onnx(adapter: Adapter, path: Path) -> Exported:
    """Write an ONNX file: input "images", output "logits", any batch size."""
    with needing_onnx():
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    predict, about = prediction_on_cpu(adapter), metadata(adapter)
    with complete(path, "onnx") as temporary:
        with quietly():
            program = torch.onnx.export(
                traced(predict, about), (), dynamo=True, verbose=False, input_names=["images"], output_names=["logits"]
            )
            assert program is not None
            program.model.metadata_props.update({k: text(v) for k, v in about.items()})
            program.save(temporary, external_data=False)
        return Exported(path, "onnx", check_parity(predict, load_onnx(temporary), about, path))


def export_torch(adapter: Adapter, path: Path) -> Exported:
    """Write a program that torch.export.load reads; what it is lies inside as itta.json."""
    predict, about = prediction_on_cpu(adapter), metadata(adapter)
    with complete(path, "zip") as temporary:
        program = io.BytesIO()  # torch aborts the process if it cannot write a file
        with quietly():
            torch.export.save(traced(predict, about), program, extra_files={METADATA: json.dumps(about)})
        temporary.write_bytes(program.getbuffer())
        return Exported(path, "torch.export", check_parity(predict, load_torch(temporary), about, path))


def prediction_on_cpu(adapter: Adapter) -> nn.Module:
    """Return the adapter's present prediction, on the CPU and in float32, whatever it computed on."""
    predict = adapter.frozen().cpu()
    for module in predict.modules():
        if isinstance(module, Backbone):
            module.precision = "float32"
    return predict


def traced(predict: nn.Module, about: Mapping[str, Any]) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch")
    return torch.export.export(predict, (images(predict, about, 2),), dynamic_shapes=({0: batch},))


def images(predict: nn.Module, about: Mapping[str, Any], n: int) -> Tensor:
    generator = torch.Generator().manual_seed(n)
    return torch.rand(n, 3, *about["image_size"], generator=generator).to(next(predict.parameters()))


def metadata(adapter: Adapter) -> dict[str, Any]:
    model = adapter.model
    return {
        "classes": list(model.classes),
        "image_size": [model.image_size, model.image_size],
        "input": "images [batch, 3, height, width], RGB in [0, 1]",
        "output": "logits [batch, classes]",
        "algorithm": model.name,
        "adapter": adapter.name,
        "itta_version": __version__,
    }


def check_parity(predict: nn.Module, run: Run, about: Mapping[str, Any], path: Path) -> float:
    """The difference between the file's answers and the model's, for batches of other sizes than it was traced with."""
    worst = 0.0
    for n in (1, 3):
        x = images(predict, about, n)
        with torch.no_grad():
            expected = predict(x)
        if not bool(torch.isfinite(expected).all()):
            raise InputError(f"the model's answers are not finite (NaN), so {path} was not written: train it again.")
        difference = (run(x) - expected).abs().max() / expected.abs().max().clamp(min=1)
        worst = max(worst, float(difference)) if torch.isfinite(difference) else float("nan")
    if not worst <= TOLERANCE:
        raise InputError(
            f"what was exported answers differently from the model, by {worst:.1e} where {TOLERANCE:.0e} is allowed: "
            f"{path} was not written. Try the other format."
        )
    return worst


def load_torch(path: Path) -> Run:
    """Images to logits, by a program from `export_torch`."""
    with quietly(), open(path, "rb") as file:
        module = torch.export.load(file).module()

    def run(x: Tensor) -> Tensor:
        with torch.no_grad():
            return module(x)

    return run


def load_onnx(path: Path) -> Run:
    """Images to logits, by ONNX Runtime on the CPU."""
    with needing_onnx():
        import onnxruntime
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(["logits"], {"images": x.numpy()})[0])


def text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@contextmanager
def needing_onnx() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise InputError(f"ONNX needs packages that are not here ({error}): pip install 'itta[export]'.") from error


@contextmanager
def quietly() -> Iterator[None]:
    """Without the warnings that torch gives about itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
