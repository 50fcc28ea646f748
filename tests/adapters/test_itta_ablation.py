"""The paper's ablation: every objective with every scope, against a naive first update."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from itta.adapters import adapt
from itta.adapters.itta import ITTA
from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.errors import InputError
from itta.nn.style_mixing import MixDraw, mix_style

Trained = Callable[..., Algorithm]
Batches = Callable[..., list[Batch]]
LR = 0.05
PAIRS = [(o, s) for o in ("learned", "plain", "entropy") for s in ("blocks", "norm", "all", "head")]
MEANINGFUL = [(o, s) for o, s in PAIRS if s != "head" or o == "entropy"]


@pytest.fixture
def x(toy_batches: Batches) -> Tensor:
    return toy_batches(300, n=12)[1][0].double()


@pytest.fixture
def draw() -> MixDraw:
    g = torch.Generator().manual_seed(3)
    return MixDraw("block2", torch.rand(12, dtype=torch.double, generator=g), torch.randperm(12, generator=g))


def loss(
    model: Algorithm, x: Tensor, objective: str, draw: MixDraw, theta: dict[str, Callable[[Tensor], Tensor]]
) -> Tensor:
    """Return the objective from the images, with one pass per view."""

    def features(mixed: bool) -> Tensor:
        def after(block: str, z: Tensor) -> Tensor:
            z = mix_style(z, draw) if mixed and block == draw.block else z
            return theta[block](z) if block in theta else z

        return model.backbone(x, after)

    if objective == "entropy":
        p = model.head(features(False)).softmax(1)
        return sum(-(row * row.log()).sum() for row in p) / len(p)
    h = features(False) - features(True)
    return ((model.f_w(h) if objective == "learned" else h) ** 2).mean()


def scope_of(name: str, scope: str) -> bool:
    """Tell whether a parameter of the trained model is in a scope, by its name."""
    kinds = {"norm": "backbone." in name and ".1." in name, "all": name.startswith("backbone."), "blocks": False}
    return kinds.get(scope, name.startswith("head."))


@pytest.mark.parametrize(("objective", "scope"), MEANINGFUL)
def test_the_first_update_is_the_naive_one(
    objective: str, scope: str, trained: Trained, x: Tensor, draw: MixDraw, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = trained(steps=20, lr=1e-2, batch_norm=True).double()
    adapter = adapt(model, "itta", objective=objective, scope=scope, optimizer="sgd", lr=LR, depth=1)
    monkeypatch.setattr(adapter, "draw_view", lambda n: draw)
    assert isinstance(adapter, ITTA)
    before = {k: v.clone() for k, v in adapter.model.state_dict().items()}
    got = adapter(x)

    inside = {k: p for k, p in model.named_parameters() if scope_of(k, scope)}
    shapes = model.backbone.block_shapes(16) if scope == "blocks" else {}
    theta = {b: [torch.ones(s, dtype=torch.double), torch.zeros(s, dtype=torch.double)] for b, s in shapes.items()}
    moving = [*inside.values(), *(t.requires_grad_() for pair in theta.values() for t in pair)]
    stacks = {b: (lambda z, ab=ab: ab[0] * z + ab[1]) for b, ab in theta.items()}
    gradients = torch.autograd.grad(loss(model, x, objective, draw, stacks), moving, allow_unused=True)
    with torch.no_grad():
        for p, g in zip(moving, gradients):
            p -= LR * (torch.zeros_like(p) if g is None else g)
        expected = model.head(model.backbone(x, lambda block, z: stacks[block](z) if block in stacks else z))
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)

    after = adapter.model.state_dict()
    moved = {k for k in after if not torch.equal(after[k], before[k])}
    assert moved <= set(inside)
    assert scope == "blocks" or moved
    for k in moved:
        torch.testing.assert_close(after[k], inside[k].detach(), rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["none", "z", "z'"])
@pytest.mark.parametrize("anchor", [0.0, 2.0])
def test_a_view_held_fixed_and_an_anchor(
    stop: str, anchor: float, trained: Trained, x: Tensor, draw: MixDraw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Take two steps: the anchor has no gradient in the first."""
    model = trained(steps=20, lr=1e-2, batch_norm=True).double()
    settings = {"optimizer": "sgd", "lr": LR, "depth": 1, "steps": 2, "blocks": ("block1", "block3")}
    adapter = adapt(model, "itta", stop=stop, anchor=anchor, **settings)
    monkeypatch.setattr(adapter, "draw_view", lambda n: draw)
    got = adapter(x)

    shapes = {b: model.backbone.block_shapes(16)[b] for b in ("block1", "block3")}
    theta = {b: [torch.ones(s, dtype=torch.double), torch.zeros(s, dtype=torch.double)] for b, s in shapes.items()}
    moving = [t.requires_grad_() for pair in theta.values() for t in pair]
    start = [t.detach().clone() for t in moving]

    def features(mixed: bool) -> Tensor:
        def after(block: str, z: Tensor) -> Tensor:
            z = mix_style(z, draw) if mixed and block == draw.block else z
            return theta[block][0] * z + theta[block][1] if block in theta else z

        return model.backbone(x, after)

    for _ in range(2):
        z, z_aug = features(False), features(True)
        h = (z.detach() if stop == "z" else z) - (z_aug.detach() if stop == "z'" else z_aug)
        away = sum(((t - t0) ** 2).sum() for t, t0 in zip(moving, start))
        gradients = torch.autograd.grad((model.f_w(h) ** 2).mean() + anchor * away, moving)
        with torch.no_grad():
            for t, g in zip(moving, gradients):
                t -= LR * g
    torch.testing.assert_close(got, model.head(features(False)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("objective", ["learned", "plain"])
def test_a_head_that_does_not_enter_the_objective(objective: str, trained: Trained) -> None:
    with pytest.raises(
        InputError, match=f"objective={objective} does not depend on the head.*choose objective=entropy"
    ):
        adapt(trained(steps=0), "itta", objective=objective, scope="head")


def test_a_model_without_a_rotation_head(trained: Trained) -> None:
    with pytest.raises(InputError, match="'erm' has no rotation head: train with --algorithm ttt"):
        adapt(trained("erm", steps=0), "itta", objective="rotation")
