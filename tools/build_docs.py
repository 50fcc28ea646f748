"""Rebuild the generated parts of docs/: `python -m tools.build_docs`; `--check` only compares.

docs/algorithms and docs/adapters have one page for each registered method, made from its docstrings, needs and
hyper-parameters, and an index that compares the methods. The cost of a training step is counted, not declared: every
method takes a few steps on a small network while the images that pass its convolutions are counted. The picture of the
architecture is drawn from the lists in docs/architecture.md. Takes ten seconds.
"""

import argparse
import inspect
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from itta.adapters import ADAPTERS, Adapter
from itta.algorithms import ALGORITHMS, Algorithm, Task
from itta.algorithms.base import Batch
from itta.catalogue import catalogue, hparams, short
from itta.hparams import default
from itta.nn import BACKBONES
from itta.nn.small_cnn import SmallCNN
from tools.draw_architecture import draw
from tools.page_templates import ADAPTERS_INDEX, COMMANDS, INDEX, PAGE

PAGES = Path(__file__).resolve().parents[1] / "docs"
DOMAINS = ("a", "b", "c")
CLASSES = tuple("1234567")  # as many as PACS has
IMAGES = 6  # per domain and step
SIZE = 8
STEPS = 12  # even, since DANN alternates; in so many, ITTA's coin falls on both sides equally often

GENERATED = "<!-- Written by tools/build_docs.py: edit the method's file, then run `make docs`. -->"


class ConvolutionCount(TorchDispatchMode):
    """Count the images that pass the backbone's convolutions, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.images = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution.default:
            self.count("forward", *args[:2])
        elif func is torch.ops.aten.convolution_backward.default and args[-1][1]:  # the weight's gradient is wanted
            self.count("backward", *args[1:3])
        return func(*args, **(kwargs or {}))

    def count(self, kind: str, x: Tensor, weight: Tensor) -> None:
        # By their size: a weight may be a copy or a tangent of the backbone's, and ARM's context network has others.
        if weight.shape[2:] == (3, 3):
            self.images[kind] += len(x)


def make_batches(step: int) -> list[Batch]:
    torch.manual_seed(step)
    return [(torch.rand(IMAGES, 3, SIZE, SIZE), torch.randint(len(CLASSES), (IMAGES,))) for _ in DOMAINS]


def count_images(cls: type[Algorithm]) -> Counter[str]:
    """Count over the first steps of a method."""
    # Not narrower: groups of one channel are normalised alike, which leaves ITTA no style to mix after the first block.
    task = Task(CLASSES, DOMAINS, SIZE, lambda: SmallCNN(width=16))
    torch.manual_seed(0)
    algorithm = cls(task, default(cls.Hparams, batch_size=IMAGES)).train()
    with ConvolutionCount() as counted:
        for step in range(STEPS):
            batches = make_batches(step)
            torch.manual_seed(step)
            algorithm.update(batches)
    return counted.images


def count_parameters(cls: type[Algorithm]) -> int:
    """Count the parameters of a method around a ResNet-18, without allocating them."""
    with torch.device("meta"):
        algorithm = cls(Task(CLASSES, DOMAINS, 224, BACKBONES["resnet18"].build), default(cls.Hparams))
    return sum(p.numel() for p in algorithm.parameters())


def compare_costs() -> str:
    """Write the table of what each method costs beside ERM."""
    images = {name: count_images(cls) for name, cls in ALGORITHMS.items()}
    parameters = {name: count_parameters(cls) for name, cls in ALGORITHMS.items()}
    rows = []
    for name, cls in ALGORITHMS.items():
        ratios = [f"{images[name][kind] / images['erm'][kind]:.1f}" for kind in ("forward", "backward")]
        needs = cls.needs
        extra = f"{parameters[name] - parameters['erm']:,}"
        by_batch = "yes" if needs.batch_prediction else ""
        rows.append([link(name), *ratios, extra, needs.second_order, by_batch, needs.single_source])
    columns = ("", "forward", "backward", "more parameters", "second order", "by batch", "one source")
    return table(columns, rows, right=(1, 2, 3))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    rule = ["---:" if i in right else "---" for i in range(len(columns))]
    escaped = [[text.replace("|", "\\|") for text in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [columns, rule, *escaped])


def link(name: str) -> str:
    return f"[{name}]({name}.md)"


def hparams_table(facts: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [[f"`{name}`", by_regime(h, "default"), by_regime(h, "searched"), h["about"]] for name, h in facts.items()]
    return table(["name", "default", "searched", "meaning"], rows)


def by_regime(hparam: Mapping[str, Any], key: str) -> str:
    """Write the value for large images, and in brackets where another regime differs."""
    others = {regime: h[key] for regime, h in hparam["regimes"].items() if h[key] != hparam[key]}
    said = "; ".join(f"{regime}: {cell(value)}" for regime, value in others.items())
    return cell(hparam[key]) + (f" ({said})" if said else "")


def cell(value: Any) -> str:
    return "–" if value is None else short(value)


def write_page(name: str, cls: type[Algorithm] | type[Adapter], entry: Mapping[str, Any]) -> str:
    """Write the page of a method."""
    own = {name: h for name, h in entry["hparams"].items() if h["own"] or issubclass(cls, Adapter)}
    shared = ", ".join(f"`{name}`" for name in entry["hparams"] if name not in own)
    return PAGE.format(
        name=name,
        generated=GENERATED,
        about=with_links(inspect.getdoc(inspect.getmodule(cls)) or ""),
        command=COMMANDS["adapters" if issubclass(cls, Adapter) else "algorithms"].format(name=name),
        equations=inspect.cleandoc(cls.__doc__ or ""),
        needs=entry["needs_in_words"],
        own=hparams_table(own) + "\n\n" if own else "",
        shared=f"[Shared with other methods](README.md#shared-hyper-parameters): {shared}.\n\n" if shared else "",
        source=f"src/{cls.__module__.replace('.', '/')}.py",
    )


def with_links(text: str) -> str:
    """Make links of the pages that a docstring names.

    >>> with_links("More: docs/deviations.md.")
    'More: [docs/deviations.md](../deviations.md).'
    """
    return re.sub(r"docs/([\w/]+\.md)", r"[docs/\1](../\1)", text)


def build() -> dict[str, str]:
    """Write every generated file: its name below docs/ -> text."""
    pages = {f"algorithms/{name}": text for name, text in build_algorithms().items()}
    pages |= {f"adapters/{name}": text for name, text in build_adapters().items()}
    return pages | {"images/architecture.svg": draw((PAGES / "architecture.md").read_text(encoding="utf-8"))}


def build_adapters() -> dict[str, str]:
    entries = catalogue()["adapters"]
    rows = []
    for name, entry in entries.items():
        needs = entry["needs"]
        batch_norm = "yes" if needs["batch_norm"] else ""
        rest = [str(needs[key]) for key in ("batch", "source", "training", "changes", "predicts")]
        rows.append([link(name), batch_norm, *rest])
    index = ADAPTERS_INDEX.format(
        generated=GENERATED,
        methods=table(["method", "paper"], [[link(name), entry["about"]] for name, entry in entries.items()]),
        needs=table(["", "BN", "images", "from the source", "training", "changes", "predicts"], rows, right=(2,)),
    )
    pages = {f"{name}.md": write_page(name, cls, entries[name]) for name, cls in ADAPTERS.items()}
    return {"README.md": index, **pages}


def build_algorithms() -> dict[str, str]:
    entries = catalogue()["algorithms"]
    index = INDEX.format(
        generated=GENERATED,
        methods=table(["method", "paper"], [[link(name), entry["about"]] for name, entry in entries.items()]),
        costs=compare_costs(),
        steps=STEPS,
        n_classes=len(CLASSES),
        n_domains=len(DOMAINS),
        shared=hparams_table(hparams(Algorithm.Hparams)),
    )
    pages = {f"{name}.md": write_page(name, cls, entries[name]) for name, cls in ALGORITHMS.items()}
    return {"README.md": index, **pages}


def stale(pages: Mapping[str, str], out: Path) -> list[str]:
    """Name the files in a folder that differ from the generated ones, are missing, or belong to no method any more."""
    folders = {Path(name).parent for name in pages if name.endswith(".md")}
    paths = {path for folder in folders for path in (out / folder).glob("*.md")} | {out / name for name in pages}
    found = {path.relative_to(out).as_posix(): path.read_text(encoding="utf-8") for path in paths if path.is_file()}
    return sorted(name for name in pages.keys() | found.keys() if pages.get(name) != found.get(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PAGES, help="folder of the documentation")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; compare with --out and exit with 1 if a file differs"
    )
    args = parser.parse_args()
    pages = build()
    outdated = stale(pages, args.out)
    for name in outdated:
        print(f"{args.out / name}: {'STALE' if args.check else 'written' if name in pages else 'removed'}")
    if args.check:
        sys.exit(1 if outdated else 0)
    for name in outdated:
        (args.out / name).parent.mkdir(parents=True, exist_ok=True)
        if name in pages:
            (args.out / name).write_text(pages[name], encoding="utf-8")
        else:
            (args.out / name).unlink()


if __name__ == "__main__":
    main()
