"""What many tests share: a toy task that a small network learns in seconds, batches of it, and Adam written out."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from itta.adapters import ADAPTERS
from itta.adapters.eata import fisher_information
from itta.algorithms import ALGORITHMS, Algorithm, Task
from itta.algorithms.base import Batch
from itta.cli import main
from itta.hparams import default
from itta.nn.backbone import Backbone
from itta.nn.small_cnn import SmallCNN
from itta.nn.style_bank import collect_styles

torch.set_num_threads(1)  # tests run side by side
CACHE = tempfile.TemporaryDirectory(prefix="itta-cache-")  # not the user's own; gone when the tests are over
os.environ["ITTA_CACHE"] = CACHE.name
os.environ.pop("ITTA_DATA", None)

SIZE = 16
CHROMIUM_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip
TINTS = {"warm": (1.0, 0.6, 0.3), "cold": (0.3, 0.6, 1.0)}


def draw_batch(domain: str, n: int, generator: torch.Generator) -> Batch:
    """Stripes across, stripes down or a chequerboard, shifted and noisy, in the tint of the domain."""
    y = torch.randint(3, (n,), generator=generator)
    row, column = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    patterns = torch.stack([row // 2 % 2, column // 2 % 2, (row // 2 + column // 2) % 2]).float()
    shift = int(torch.randint(SIZE, (), generator=generator))
    shape = patterns[y].roll((shift, shift), (1, 2))[:, None]  # [B, 1, S, S]
    tint = torch.tensor(TINTS[domain])[None, :, None, None]
    return (0.8 * shape * tint + 0.2 * torch.rand(n, 3, SIZE, SIZE, generator=generator)).clamp(0, 1), y


class TinyBN(Backbone):
    """Four convolutions with batch normalisation, which `SmallCNN` has not."""

    block_names = ("block1", "block2", "block3", "block4")
    dim = 16

    def __init__(self) -> None:
        super().__init__(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
        for name, n_in, stride in zip(self.block_names, (3, 16, 16, 16), (1, 2, 1, 2)):
            conv = nn.Conv2d(n_in, 16, 3, stride, padding=1, bias=False)
            setattr(self, name, nn.Sequential(conv, nn.BatchNorm2d(16), nn.ReLU()))

    def stem(self, x: Tensor) -> Tensor:
        return x


@pytest.fixture
def toy() -> Task:
    return Task(("across", "down", "chequer"), tuple(TINTS), SIZE, lambda: SmallCNN(width=8))


@pytest.fixture
def toy_batches() -> Callable[..., list[Batch]]:
    """(step, images per domain) -> one batch for each domain of the toy task."""

    def batches(step: int, n: int = 8) -> list[Batch]:
        generator = torch.Generator().manual_seed(step)
        return [draw_batch(domain, n, generator) for domain in TINTS]

    return batches


@pytest.fixture
def build(toy: Task) -> Callable[..., Algorithm]:
    """(name, settings) -> that algorithm on the toy task, from seed 0."""

    def make(name: str, task: Task = toy, **settings: object) -> Algorithm:
        torch.manual_seed(0)
        cls = ALGORITHMS[name]
        return cls(task, default(cls.Hparams, **settings)).train()

    return make


@pytest.fixture
def trained(
    toy: Task, build: Callable[..., Algorithm], toy_batches: Callable[..., list[Batch]]
) -> Callable[..., Algorithm]:
    """(name, settings) -> that algorithm after a few steps, with a style bank, as training leaves it."""

    def make(name: str = "itta", steps: int = 5, batch_norm: bool = False, **settings: object) -> Algorithm:
        task = replace(toy, make_backbone=TinyBN) if batch_norm else toy
        algorithm = build(name, task, **({"lr": 1e-3} | settings))
        for step in range(steps):
            torch.manual_seed(step)
            algorithm.update(toy_batches(step))
        images: dict[str, list[Tensor]] = {d: [x] for d, (x, _) in zip(TINTS, toy_batches(100))}
        algorithm.style_bank = collect_styles(algorithm.backbone, images, algorithm.backbone.block_names[:2])
        if batch_norm:
            algorithm.fisher = fisher_information(algorithm, [x for batches in images.values() for x in batches])
        return algorithm.eval()

    return make


@pytest.fixture
def trained_for(trained: Callable[..., Algorithm]) -> Callable[..., Algorithm]:
    """(adapter) -> a trained model that has what the adapter needs, and is sure enough to be learned from."""

    def make(adapter: str, **settings: object) -> Algorithm:
        needs = ADAPTERS[adapter].needs
        return trained(needs.training or "erm", batch_norm=needs.batch_norm, **({"steps": 20, "lr": 1e-2} | settings))

    return make


class NaiveAdam:
    """Adam written out, one tensor after another."""

    def __init__(self, lr: float, weight_decay: float = 0.0, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        self.lr, self.weight_decay, self.betas = lr, weight_decay, betas
        self.restart()

    def restart(self) -> None:
        self.state: dict[int, tuple[Tensor, Tensor, int]] = {}

    @torch.no_grad()
    def step(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        a, b = self.betas
        for p, g in zip(parameters, gradients, strict=True):
            g = g + self.weight_decay * p
            m, v, t = self.state.get(id(p), (torch.zeros_like(p), torch.zeros_like(p), 0))
            m, v, t = a * m + (1 - a) * g, b * v + (1 - b) * g**2, t + 1
            self.state[id(p)] = m, v, t
            p -= self.lr * (m / (1 - a**t)) / ((v / (1 - b**t)).sqrt() + 1e-8)


@pytest.fixture
def naive_adam() -> type[NaiveAdam]:
    return NaiveAdam


@pytest.fixture
def run_itta(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """(words) -> what a command that succeeds prints."""

    def call(*words: object) -> str:
        capsys.readouterr()
        status = main([str(w) for w in words])
        captured = capsys.readouterr()
        assert status == 0, captured.err
        return captured.out

    return call


@pytest.fixture(scope="module")  # not longer: while it runs, nothing else in the process can use asyncio
def browser() -> Iterator[Any]:
    """A real Chromium; without one the test is skipped, unless ITTA_BROWSER=required."""
    found = [path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))]
    problem = "" if found else "no chromium, chromium-browser or google-chrome on the path: apt-get install chromium"
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        problem = "playwright is not installed: pip install playwright"
    if problem and os.environ.get("ITTA_BROWSER") == "required":
        pytest.fail(problem)
    if problem:
        pytest.skip(problem)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found[0], args=list(CHROMIUM_FLAGS))
        yield opened
        opened.close()
