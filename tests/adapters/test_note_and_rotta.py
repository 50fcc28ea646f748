"""NOTE and RoTTA together: both learn from a memory, after every ``every`` images."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from itta.adapters import adapt
from itta.algorithms import Algorithm
from itta.errors import InputError

Trained = Callable[..., Algorithm]
QUICK: dict[str, dict[str, float]] = {
    "note": {"lr": 1e-2, "memory": 6, "every": 8, "bn_momentum": 0.2},
    "rotta": {"lr": 1e-2, "memory": 7, "every": 8, "share": 0.2, "nu": 0.3},
}


@pytest.mark.parametrize("name", QUICK)
def test_the_cut_into_batches_does_not_matter(name: str, trained: Trained, stream: list[Tensor]) -> None:
    model, images = trained("erm", batch_norm=True).double(), torch.cat(stream).double()
    whole = adapt(model, name, **QUICK[name])
    expected = whole(images)
    for size in (1, 5, 8, 16):
        adapter = adapt(model, name, **QUICK[name])
        got = torch.cat([adapter(x) for x in images.split(size)])
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
        state = whole.state_dict()
        for key, value in adapter.state_dict().items():
            torch.testing.assert_close(value, state[key], rtol=1e-9, atol=1e-9, msg=key)


@pytest.mark.parametrize("name", QUICK)
def test_predicts_as_the_trained_model_until_it_learns(name: str, trained: Trained, stream: list[Tensor]) -> None:
    """Also, the other images of a batch do not change a prediction."""
    model = trained("erm", batch_norm=True)
    adapter = adapt(model, name, every=24)
    with torch.no_grad():
        for x in stream[:2]:
            torch.testing.assert_close(adapter(x), model.predict(x))
        assert (adapter(stream[2]) - model.predict(stream[2])).abs().max() > 1e-4


@pytest.mark.parametrize("name", QUICK)
def test_the_model_keeps_its_buffers_and_the_state_travels(name: str, trained: Trained, stream: list[Tensor]) -> None:
    model = trained("erm", batch_norm=True)
    adapter, other = adapt(model, name, **QUICK[name]), adapt(model, name, **QUICK[name])
    start, before = adapter.state_dict(), {k: v.clone() for k, v in adapter.model.state_dict().items()}
    first = [adapter(x) for x in stream[:2]]
    moved = {k for k, v in adapter.model.state_dict().items() if not torch.equal(v, before[k])}
    assert moved == set(adapter.moving)
    assert not any(m.training for m in adapter.model.modules())
    other.load_state_dict(adapter.state_dict())
    for x in stream[2:]:
        assert torch.equal(adapter(x), other(x))
    adapter.reset()
    assert all(torch.equal(v, start[k]) for k, v in adapter.state_dict().items())
    assert all(torch.equal(adapter(x), y) for x, y in zip(stream, first))


@pytest.mark.parametrize("name", QUICK)
def test_the_memory_is_bounded_and_its_own(name: str, trained: Trained, stream: list[Tensor]) -> None:
    adapter = adapt(trained("erm", batch_norm=True), name, **QUICK[name])
    adapter(stream[0])
    shapes, images = {k: v.shape for k, v in adapter.state_dict().items()}, adapter.extra["images"].clone()
    stream[0].zero_()  # the caller may overwrite the batch
    assert torch.equal(adapter.extra["images"], images)
    for x in stream[1:] * 3:
        adapter(x.clone().requires_grad_())
    assert {k: v.shape for k, v in adapter.state_dict().items()} == shapes
    assert all(v.grad_fn is None for v in adapter.extra.values())


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize(
    ("name", "settings", "held"),
    [("note", {"every": 2, "bn_momentum": 1.0}, 6), ("rotta", {"every": 1, "share": 1.0}, 3)],
)
def test_constant_images(name: str, settings: dict[str, float], held: int, value: float, trained: Trained) -> None:
    """Equal images of one class have no variance in the memory. RoTTA's memory holds the quota of one class."""
    adapter = adapt(trained("erm", batch_norm=True), name, **(QUICK[name] | settings))
    for _ in range(6):
        assert torch.isfinite(adapter(torch.full((4, 3, 16, 16), value))).all()
    assert all(torch.isfinite(v).all() for v in adapter.state_dict().values())
    assert (adapter.extra["labels"] >= 0).tolist() == [i < held for i in range(adapter.hp.memory)]


@pytest.mark.parametrize("name", QUICK)
def test_other_sizes(name: str, trained: Trained) -> None:
    with pytest.raises(InputError, match="expected images of 16×16 pixels, got 20×20"):
        adapt(trained("erm", batch_norm=True), name)(torch.rand(2, 3, 20, 20))


@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [
        ("note", {"memory": 1}, "memory must be at least 2, got 1"),
        ("note", {"every": 0}, "every must be at least 2, got 0"),
        ("note", {"bn_momentum": 1.5}, r"bn_momentum must be between 0 and 1, got 1\.5"),
        ("note", {"episodic": True}, "note cannot run with episodic=True"),
        ("rotta", {"memory": 0}, "memory must be at least 1, got 0"),
        ("rotta", {"every": 0}, "every must be at least 1, got 0"),
        ("rotta", {"share": 1.5}, r"share must be between 0 and 1, got 1\.5"),
        ("rotta", {"nu": -1.0}, r"nu must be between 0 and 1, got -1\.0"),
        ("rotta", {"lambda_t": -1.0}, r"lambda_t must be finite and not negative, got -1\.0"),
        ("rotta", {"lambda_u": float("inf")}, "lambda_u must be finite and not negative, got inf"),
        ("rotta", {"episodic": True}, "rotta cannot run with episodic=True"),
    ],
)
def test_wrong_settings(name: str, setting: dict[str, object], message: str, trained: Trained) -> None:
    with pytest.raises(InputError, match=message):
        adapt(trained("erm", batch_norm=True, steps=0), name, **setting)
