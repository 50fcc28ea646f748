"""The source of ITTA's second view at test time: the batch, the style bank or noise."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor

from itta.adapters import adapt
from itta.adapters.itta import PRESETS
from itta.algorithms import Algorithm
from itta.errors import InputError
from itta.nn.style_bank import StyleBank
from itta.nn.style_mixing import MixDraw

Trained = Callable[..., Algorithm]
Counting = Callable[..., AbstractContextManager[list[int]]]


def test_a_single_image_adapts_with_the_style_bank(
    trained: Trained, stream: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If λ is exactly 1, the image keeps its own style and there is nothing to learn."""
    adapter = adapt(trained(), "itta", lr=1e-2)
    draw_view, shares = adapter.draw_view, []

    def noting(n: int) -> MixDraw:
        draw = draw_view(n)
        shares.append(float(draw.lam))
        return draw

    monkeypatch.setattr(adapter, "draw_view", noting)
    gradients = []
    for x in torch.cat(stream)[:20]:
        before = {k: v.clone() for k, v in adapter.theta.state_dict().items()}
        adapter(x[None])
        gradients.append(float(sum(p.grad.abs().sum() for p in adapter.theta.parameters())))
        assert any(not torch.equal(v, before[k]) for k, v in adapter.theta.state_dict().items())
    assert all(g > 0 for g, lam in zip(gradients, shares) if lam < 0.999)
    assert sum(lam < 0.999 for lam in shares) > 8


def test_small_batches_draw_from_the_bank_and_others_from_each_other(trained: Trained) -> None:
    adapter = adapt(trained(), "itta", bank_below=4)
    assert adapter.draw_view(3).style is not None
    assert adapter.draw_view(4).style is None
    assert sorted(adapter.draw_view(4).partner.tolist()) == [0, 1, 2, 3]
    bare = trained()
    bare.style_bank = None
    assert adapt(bare, "itta").draw_view(2).partner is not None


def test_the_released_preset_is_inert_on_single_images(trained: Trained, stream: list[Tensor]) -> None:
    """The release mixes an image with itself, multiplies the loss by 1e-6, and steps with Adam."""
    assert PRESETS["released"] == {"lr": 5e-6, "loss_scale": 1e-6, "bank_below": 0}
    assert PRESETS["paper"] == {}
    model = trained(difference="z'-z", update_order="paper")
    adapter = adapt(model, "itta", **PRESETS["released"])
    for x in stream[0]:
        with torch.no_grad():
            change = (adapter(x[None]) - model.predict(x[None])).abs().max()
        assert change < 1e-5


def test_one_image_and_no_bank(trained: Trained, stream: list[Tensor]) -> None:
    model = trained()
    model.style_bank = None
    adapter = adapt(model, "itta")
    before = {k: v.clone() for k, v in adapter.state_dict().items()}
    with pytest.raises(InputError, match="this model has no style bank to mix one image with, got 1"):
        adapter(stream[0][:1])
    assert all(torch.equal(v, before[k]) for k, v in adapter.state_dict().items())
    adapter(stream[0][:2])


def test_noise_needs_neither_batch_nor_bank(trained: Trained, stream: list[Tensor], counting_passes: Counting) -> None:
    model = trained(view="noise").double()  # no fast copy in double precision
    stream = [x.double() for x in stream]
    model.style_bank = None
    adapter = adapt(model, "itta", lr=1e-2)
    with torch.no_grad():
        source = model.predict(stream[0][:1])
    assert not torch.equal(adapter(stream[0][:1]), source)
    for block in model.backbone.block_names:
        with counting_passes(adapter, f"backbone.{block}") as passes:
            adapter(stream[0][:1])
        assert set(passes) == {1}  # the views differ only after the last block


def test_the_bank_travels_with_the_copy(trained: Trained) -> None:
    model = trained()
    adapter = adapt(model, "itta")
    bank = adapter.model.style_bank
    assert isinstance(bank, StyleBank)
    assert all(torch.equal(bank.mean[b], model.style_bank.mean[b]) for b in ("block1", "block2"))
