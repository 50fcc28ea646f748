"""Maps of a whole batch against a recomputation image by image, block by block, style by style."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from itta.adapters import adapt
from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.errors import InputError
from itta.explain.losses import (
    MapRequest,
    NetworkState,
    RandomViews,
    batch_maps,
    choose_losses,
    draw_random_views,
    losses_of,
)
from itta.nn.backbone import After, keep
from itta.nn.style_mixing import MixDraw
from itta.nn.views import NoiseDraw

Trained = Callable[..., Algorithm]
Batches = Callable[..., list[Batch]]
BLOCKS = ("block1", "block2", "block3", "block4")


def go_on(model: Algorithm, block: str, raw: Tensor, after: After, until: str | None = None) -> Tensor:
    """From a block's own output to the features, or to the own output of a later block."""
    if until == block:
        return raw
    for name in BLOCKS[BLOCKS.index(block) + 1 :]:
        raw = model.backbone.get_submodule(name)(after(block, raw))
        block = name
        if name == until:
            return raw
    return after(block, raw).mean((2, 3))


def first_output(model: Algorithm, x: Tensor, block: str, after: After) -> Tensor:
    z = model.backbone.block1(model.backbone.stem(model.backbone.normalise(x)))
    return go_on(model, "block1", z, after, block)


def restyled(raw: Tensor, lam: float, style: tuple[Tensor, Tensor]) -> Tensor:
    """One image's map in a style that is partly another's; statistics are constants."""
    flat = raw.detach()[0].flatten(1)
    mean, std = flat.mean(1), (flat.var(1) + 1e-6).sqrt()
    mean_mix, std_mix = lam * mean + (1 - lam) * style[0], lam * std + (1 - lam) * style[1]
    out = [(raw[0, c] - mean[c]) / std[c] * std_mix[c] + mean_mix[c] for c in range(len(mean))]
    return torch.stack(out)[None]


def style_of(raw: Tensor) -> tuple[Tensor, Tensor]:
    flat = raw.detach()[0].flatten(1)
    return flat.mean(1), (flat.var(1) + 1e-6).sqrt()


def naive(
    model: Algorithm, x: Tensor, y: int, loss: str, block: str, drawn: RandomViews, i: int, after: After
) -> Tensor:
    """The map of image i alone."""
    own = x[i : i + 1]
    a = first_output(model, own, block, after).detach().requires_grad_()
    z = go_on(model, block, a, after)
    logits = model.head(z)[0]
    p = logits.softmax(0)
    if loss == "main":
        value = -p[y].log()
    elif loss == "entropy":
        value = -sum(q * q.log() for q in p)
    elif loss == "class:down":
        value = -logits[1]
    else:
        view = drawn.view
        if isinstance(view, NoiseDraw):
            z_aug = view.scale[i] * z + view.shift[i]
        else:
            assert isinstance(view, MixDraw)
            if BLOCKS.index(view.block) < BLOCKS.index(block):
                parted = first_output(model, own, view.block, after).detach()
            else:
                parted = go_on(model, block, a, after, view.block)
            if view.partner is not None:
                other = int(view.partner[i])
                style = style_of(first_output(model, x[other : other + 1], view.block, after))
            else:
                style = (view.style[0][i].double(), view.style[1][i].double())
            z_aug = go_on(model, view.block, restyled(parted, float(view.lam[i]), style), after)
        h = z - z_aug
        value = (model.f_w(h) if loss == "learned" else h).square().sum() / h.numel()
    (g,) = torch.autograd.grad(value, a)
    return sum(g[0, k].mean() * a[0, k] for k in range(a.shape[1])).detach()


def theta(model: Algorithm) -> After:
    """What an adapter that has learned puts after the blocks."""
    adapter = adapt(model, "itta", depth=3)
    torch.manual_seed(3)
    with torch.no_grad():
        for p in adapter.moving.values():
            p.add_(0.3 * torch.randn_like(p))
    return adapter.adapt_block


LOSSES = ("main", "learned", "plain", "entropy", "class:down")


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("mixed", ["block1", "block2"])
@pytest.mark.parametrize("block", BLOCKS)
def test_maps_equal_a_naive_recomputation(
    block: str, mixed: str, adapted: bool, trained: Trained, toy_batches: Batches
) -> None:
    model = trained("itta", lr=3e-3, batch_norm=True, fw_depth=2).double()
    torch.nn.init.uniform_(model.f_w.bias, 0.1, 0.5)  # so that it answers on both sides of zero
    x, y = toy_batches(7, n=5)[1]
    x = x.double()
    after = theta(model) if adapted else keep
    view = MixDraw(mixed, torch.tensor([0.1, 0.4, 0.0, 0.5, 0.2]).double(), torch.tensor([3, 0, 4, 2, 1]))
    drawn = RandomViews(view)
    maps, _ = batch_maps(NetworkState(model, after), x, y, MapRequest(LOSSES, block, drawn))
    assert list(maps) == list(LOSSES)
    for loss, found in maps.items():
        expected = torch.stack([naive(model, x, int(y[i]), loss, block, drawn, i, after) for i in range(5)])
        assert expected.abs().amax((1, 2)).min() > 1e-11, loss  # or there would be nothing to compare
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12 * float(expected.abs().max()))


@pytest.mark.parametrize("view", ["noise", "bank"])
def test_other_second_views(view: str, trained: Trained, toy_batches: Batches) -> None:
    model = trained("itta", lr=3e-3, batch_norm=True, view="noise" if view == "noise" else "mixstyle").double()
    x, y = toy_batches(7, n=5)[1]
    drawn = draw_random_views(model, LOSSES, 5, torch.Generator().manual_seed(0))
    assert isinstance(drawn.view, NoiseDraw if view == "noise" else MixDraw)
    maps, _ = batch_maps(NetworkState(model), x.double(), y, MapRequest(("learned", "plain"), "block2", drawn))
    for loss, found in maps.items():
        expected = [naive(model, x.double(), int(y[i]), loss, "block2", drawn, i, keep) for i in range(5)]
        torch.testing.assert_close(found, torch.stack(expected), rtol=1e-8, atol=1e-14)


@pytest.mark.parametrize("block", BLOCKS)
def test_rotation_is_turned_back(block: str, trained: Trained, toy_batches: Batches) -> None:
    model = trained("ttt", lr=3e-3).double()
    assert not torch.equal(model.rotation_branch.get_parameter("block4/conv/weight"), model.backbone.block4.conv.weight)
    x, y = toy_batches(7, n=4)[1]
    turns = torch.tensor([0, 1, 2, 3])
    wanted = MapRequest(("main", "rotation"), block, RandomViews(turns=turns))
    maps, _ = batch_maps(NetworkState(model), x.double(), y, wanted)
    own_end = dict(model.rotation_branch.replacements())
    for i, k in enumerate(turns.tolist()):
        turned = x[i : i + 1].double().rot90(k, (2, 3))
        z = model.backbone.stem(model.backbone.normalise(turned))
        a = z
        for name in BLOCKS:
            module = model.backbone.get_submodule(name)
            if name == "block4":
                own = {key.removeprefix("block4."): value for key, value in own_end.items()}
                z = torch.func.functional_call(module, own, (z,))
            else:
                z = module(z)
            if name == block:
                z = a = z.detach().requires_grad_()
        value = -model.rotation_head(z.mean((2, 3)))[0].log_softmax(0)[k]
        (g,) = torch.autograd.grad(value, a)
        upright = (g.mean((2, 3), keepdim=True) * a).sum(1)[0].detach().rot90(-k, (0, 1))
        torch.testing.assert_close(maps["rotation"][i], upright, rtol=1e-9, atol=1e-14)


def test_without_a_label_the_prediction_is_explained(trained: Trained, toy_batches: Batches) -> None:
    model = trained("erm", steps=20, lr=1e-2)
    x, y = toy_batches(7, n=6)[1]
    network, wanted = NetworkState(model), MapRequest(("main",), "block4")
    unlabelled, logits = batch_maps(network, x, torch.full_like(y, -1), wanted)
    explained, _ = batch_maps(network, x, logits.argmax(1), wanted)
    others, _ = batch_maps(network, x, (logits.argmax(1) + 1) % 3, wanted)
    assert torch.equal(unlabelled["main"], explained["main"])
    assert not torch.equal(unlabelled["main"], others["main"])
    torch.testing.assert_close(logits, model.predict(x).detach())


class Backwards(TorchDispatchMode):
    """Count the convolutions that are differentiated, and by what."""

    def __init__(self) -> None:
        super().__init__()
        self.images: list[int] = []
        self.by_weights = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is torch.ops.aten.convolution_backward.default:
            self.images.append(len(args[0]))
            self.by_weights += args[10][1]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("block", "mixed", "images"),
    [
        ("block4", "block1", []),  # behind it there is only the head
        ("block3", "block1", [6, 6, 6, 6]),  # a convolution for each loss, and none for the second view
        ("block2", "block2", [6, 6] + [6, 6, 6, 6] * 2 + [6, 6]),  # main; both views of learned and plain; entropy
    ],
)
def test_no_gradient_is_computed_that_nobody_uses(
    block: str, mixed: str, images: list[int], trained: Trained, toy_batches: Batches
) -> None:
    model = trained("itta")  # its parameters still ask for gradients
    x, y = toy_batches(7, n=6)[1]
    drawn = draw_random_views(model, LOSSES, 6, torch.Generator().manual_seed(0))
    view = MixDraw(mixed, torch.full((6,), 0.3), torch.arange(6).roll(1))
    with Backwards() as counted:
        batch_maps(NetworkState(model), x, y, MapRequest(LOSSES[:4], block, RandomViews(view, drawn.turns)))
    assert counted.images == images
    assert counted.by_weights == 0
    assert all(p.grad is None or not p.grad.isnan().any() for p in model.parameters())


def test_every_image_gets_a_second_view(trained: Trained) -> None:
    model = trained("itta")
    generator = torch.Generator().manual_seed(0)
    for n in (8, 9, 33):
        drawn = draw_random_views(model, LOSSES, n, generator)
        assert isinstance(drawn.view, MixDraw)
        assert drawn.view.partner is not None
        assert sorted(drawn.view.partner.tolist()) == list(range(n))
        assert (drawn.view.partner != torch.arange(n)).all()
        assert (drawn.view.lam <= 0.5).all()
        assert drawn.turns is None
    alone = draw_random_views(model, LOSSES, 1, generator).view
    assert isinstance(alone, MixDraw)
    assert alone.style is not None
    assert draw_random_views(model, ("main", "entropy"), 4, generator) == RandomViews()
    model.style_bank = None
    with pytest.raises(InputError, match="at least 2 images"):
        draw_random_views(model, LOSSES, 1, generator)


def test_losses_are_those_the_model_has(build: Trained) -> None:
    assert losses_of(build("itta")) == ("main", "learned", "plain", "entropy")
    assert losses_of(build("ttt")) == ("main", "plain", "entropy", "rotation")
    erm = build("erm")
    assert choose_losses(erm, ()) == ("main", "plain", "entropy")
    assert choose_losses(erm, ("entropy", "class:down", "entropy")) == ("entropy", "class:down")
    for name, told in {
        "learned": "no learned loss f_w: train with --algorithm itta",
        "rotation": "no rotation head: train with --algorithm ttt",
        "entropie": "Did you mean 'entropy'",
        "class:up": "across, down, chequer",
    }.items():
        with pytest.raises(InputError, match=told):
            choose_losses(erm, ("main", name))
