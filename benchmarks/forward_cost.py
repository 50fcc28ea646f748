"""What prediction costs, relative to ONNX Runtime with the same weights, images and threads: time.

Three rows for each case: the network as it was trained (`network`), the fast copy on which adapters predict while the
network stands still (`source`), and `itta+` with its guard. The column `to source` compares with the fast copy. Rounds
are interleaved, with a rest before each run: the threads of both libraries wait for work a while before they sleep, and
would slow down the other library. By default there are three cases; with `--image-size` there is one, of your choice.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnxruntime
import torch
from torch import Tensor

from benchmarks import timing
from benchmarks.timing import Job, Ratio, Result, compare, interleave, watch
from itta.adapters import adapt
from itta.algorithms.erm import ERM
from itta.errors import InputError
from itta.hparams import default
from itta.nn.batch_norm import batch_norms
from itta.nn.style_bank import collect_styles
from itta.store.export import export_onnx

BASE = "onnxruntime"
CASES = (("resnet18", 128, 32), ("resnet18", 224, 8), ("efficientnet_lite0", 128, 32))
TOLERANCE = 1e-5  # where logits exceed 1, as a share of them


@dataclass(frozen=True)
class Options(timing.Options):
    rounds: int = 15  # rounds to time
    image_size: int = 0  # pixels on each side; 0 measures the three cases, whatever backbone and batch say
    rest: float = 0.05  # seconds before each run

    def __post_init__(self) -> None:
        if self.image_size > 0:
            super().__post_init__()

    def cases(self) -> tuple[timing.Options, ...]:
        chosen = ((self.backbone, self.image_size, self.batch),) if self.image_size > 0 else CASES
        return tuple(timing.Options(self.rounds, size, batch, name, self.threads) for name, size, batch in chosen)


def measure(options: Options) -> Result:
    columns: dict[str, dict[str, Ratio]] = {"time": {}, "to source": {}}
    base_seconds = 0.0
    for case in watch(options.cases(), "time", options.json):
        seconds = interleave(jobs_of(case), options.rounds, True, partial(time.sleep, options.rest))
        base_seconds = base_seconds or statistics.median(seconds[BASE])
        about = f"{case.backbone} {case.image_size}² batch {case.batch}"
        for column, base in (("time", BASE), ("to source", "source")):
            columns[column] |= {f"{about} {name}": ratio for name, ratio in compare(seconds, base).items()}
    return Result(BASE, base_seconds, columns)


def jobs_of(case: timing.Options) -> dict[str, Job]:
    """Return the jobs of a case, after a check that they give the same logits."""
    torch.manual_seed(0)
    trained, x = ERM(case.task(), default(ERM.Hparams)).eval(), case.images()
    for norm in batch_norms(trained.backbone).values():  # statistics as after training: none of 0 and 1
        assert norm.running_mean is not None
        norm(torch.randn(64, len(norm.running_mean), 4, 4))
        norm.train()(torch.randn(64, len(norm.running_mean), 4, 4) * 1.2 + 0.1)
        norm.eval()
    blocks = trained.backbone.block_names
    trained.style_bank = collect_styles(trained.backbone, {"domain": [x]}, blocks[:2])
    source, plus = adapt(trained, "source"), adapt(trained, "itta+")
    runs: dict[str, Callable[[], Tensor]] = {
        BASE: onnx_run(export(source), x, case.threads),
        "network": partial(plain, trained.requires_grad_(False), x),
        "source": partial(source, x),
        "itta+": partial(plus, x),
    }
    expected = runs["network"]()
    for name in (BASE, "source"):
        difference = float((runs[name]() - expected).abs().max() / expected.abs().max().clamp(min=1))
        if difference > TOLERANCE:
            raise InputError(f"{name} answers differently, by {difference:.1e}: times cannot be compared.")
    return {name: Job(run, 1) for name, run in runs.items()}


def export(source: torch.nn.Module) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        export_onnx(source, path)  # type: ignore[arg-type]
        return path.read_bytes()


def onnx_run(model: bytes, x: Tensor, threads: int) -> Callable[[], Tensor]:
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    images = x.numpy()
    return lambda: torch.from_numpy(session.run(["logits"], {"images": images})[0])


@torch.no_grad()
def plain(model: ERM, x: Tensor) -> Tensor:
    return model.predict(x)


if __name__ == "__main__":
    timing.main("forward_cost", Options, measure, __doc__)
