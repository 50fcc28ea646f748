"""What an estimate adds to predicting 10,000 images with itta+: CPU seconds with and without, side by side.

Images are noise; their number and size count, not their content. Batches of both kinds take turns, so that whatever
else the machine does weighs on both.
"""

import time
from dataclasses import dataclass

import torch
import tyro

from itta.adapters import adapt
from itta.algorithms import Task, find_algorithm
from itta.estimators import Witness, estimate_from
from itta.estimators.stand_in_targets import make_stand_ins
from itta.hparams import default
from itta.models.source_collection import collect
from itta.models.source_statistics import fit_early_reader
from itta.nn import make_backbone

CLASSES = tuple(f"class {i}" for i in range(7))


@dataclass(frozen=True)
class Options:
    images: int = 10_000
    backbone: str = "small_cnn"  # a larger network makes the share of the estimate smaller
    image_size: int = 32
    batch_size: int = 32


def main(options: Options) -> None:
    torch.manual_seed(0)
    size = options.image_size
    cls = find_algorithm("erm")
    task = Task(CLASSES, ("a", "b"), size, lambda: make_backbone(options.backbone, "none", size))
    model = cls(task, default(cls.Hparams)).eval()
    source = {d: (torch.rand(80, 3, size, size), torch.randint(len(CLASSES), (80,))) for d in "ab"}
    collect(model, {d: [pair] for d, pair in source.items()})
    model.stand_ins = make_stand_ins(model, source, reader=fit_early_reader(model, source.values()))
    alone, witness = adapt(model, "itta+"), Witness(model, adapt(model, "itta+"))
    batch = torch.rand(options.batch_size, 3, size, size)
    seconds = {"predicting": 0.0, "with an estimate": 0.0}
    for number in range(-(-options.images // options.batch_size) + 5):
        for name, run in (("predicting", alone), ("with an estimate", witness)):
            start = time.process_time()
            run(batch)
            seconds[name] += (time.process_time() - start) * (number >= 5)  # the first ones are slower
    start = time.process_time()
    estimate_from(witness.evidence(), model.stand_ins)
    seconds["with an estimate"] += time.process_time() - start
    ratio = seconds["with an estimate"] / seconds["predicting"]
    print(f"{options.images} images: {seconds} CPU seconds, ratio {ratio:.3f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(tyro.cli(Options, prog="python -m benchmarks.estimate_cost", description=__doc__))
