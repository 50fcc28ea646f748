"""What many tests share: a toy task that a small network learns in seconds, and batches of it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from itta.algorithms import ALGORITHMS, Algorithm, Task
from itta.algorithms.base import Batch
from itta.hparams import default
from itta.nn.small_cnn import SmallCNN
from itta.nn.style_bank import collect_styles

torch.set_num_threads(1)  # tests run side by side

SIZE = 16
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
def trained(build: Callable[..., Algorithm], toy_batches: Callable[..., list[Batch]]) -> Callable[..., Algorithm]:
    """(name, settings) -> that algorithm after a few steps, with a style bank, as training leaves it."""

    def make(name: str = "itta", steps: int = 5, **settings: object) -> Algorithm:
        algorithm = build(name, **({"lr": 1e-3} | settings))
        for step in range(steps):
            torch.manual_seed(step)
            algorithm.update(toy_batches(step))
        images: dict[str, list[Tensor]] = {d: [x] for d, (x, _) in zip(TINTS, toy_batches(100))}
        algorithm.style_bank = collect_styles(algorithm.backbone, images, algorithm.backbone.block_names[:2])
        return algorithm.eval()

    return make
