"""Every method trains in bf16: finite, near float32, and good enough to learn."""

from collections.abc import Callable

import pytest
import torch

from itta.algorithms import ALGORITHMS, Algorithm
from itta.algorithms.base import Batch
from itta.nn.device import place
from tests.fixtures.toy import mark_slow

pytestmark = pytest.mark.slow

Build = Callable[..., Algorithm]
Batches = Callable[..., list[Batch]]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_step_in_bf16_is_near_one_in_float32(name: str, build: Build, toy_batches: Batches) -> None:
    logs = {}
    for precision in ("float32", "bf16"):
        algorithm = place(build(name), "cpu", precision)  # type: ignore[arg-type]
        torch.manual_seed(0)
        logs[precision] = algorithm.update(toy_batches(0))
        assert all(torch.isfinite(t).all() for t in algorithm.state_dict().values())
        assert all(p.dtype == torch.float32 for p in algorithm.parameters())
    assert logs["bf16"] != logs["float32"]
    near = {"itta": 0.2}.get(name, 0.05)  # its gradients come from a small difference of two views
    assert logs["bf16"] == pytest.approx(logs["float32"], rel=0.1, abs=near)


@pytest.mark.parametrize("name", mark_slow(["erm", "itta"], ["erm", "itta"]))
def test_learns_in_bf16(name: str, build: Build, toy_batches: Batches) -> None:
    algorithm = place(build(name, lr=3e-3), "cpu", "bf16")
    for step in range(60):
        torch.manual_seed(step)
        algorithm.update(toy_batches(step))
    algorithm.eval()
    for x, y in toy_batches(10_000, n=60):
        assert (algorithm.predict(x).argmax(1) == y).float().mean() > 0.9
