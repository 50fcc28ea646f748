"""TTT at test time against its formula, image by image and view by view; and ITTA with TTT's objective."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from itta.adapters import adapt
from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.errors import InputError
from itta.functional.augment import augment, draw_augmentation

Trained = Callable[..., Algorithm]
Batches = Callable[..., list[Batch]]
Weights = dict[str, Tensor]


@pytest.fixture
def model(trained: Trained) -> Algorithm:
    return trained("ttt", lr=1e-2).double()


@pytest.fixture
def stream(toy_batches: Batches) -> list[Tensor]:
    return [toy_batches(200 + i, n=n)[1][0].double() for i, n in enumerate((4, 3, 1))]


def turn(image: Tensor, k: int) -> Tensor:
    for _ in range(k):
        image = image.transpose(1, 2).flip(1)
    return image


def run_block(z: Tensor, w: Weights, i: int, prefix: str) -> Tensor:
    z = F.conv2d(z, w[f"{prefix}conv.weight"], w[f"{prefix}conv.bias"], 2 if i == 2 else 1, padding=1).clamp(min=0)
    return F.group_norm(z, 8, w[f"{prefix}norm.weight"], w[f"{prefix}norm.bias"])


def logits(x: Tensor, w: Weights, rotation: bool, after: Callable[[int, Tensor], Tensor] = lambda i, z: z) -> Tensor:
    """Run both ends by hand. ``w`` holds the model's parameters by name."""
    z = (x - 0.5) / 0.5
    for i in (1, 2, 3):
        z = after(i, run_block(z, w, i, f"backbone.block{i}."))
    if not rotation:
        return after(4, run_block(z, w, 4, "backbone.block4.")).mean((2, 3)) @ w["head.weight"].T + w["head.bias"]
    own = {k.replace("rotation_branch.block4/", "").replace("/", "."): v for k, v in w.items()}
    return run_block(z, own, 4, "").mean((2, 3)) @ w["rotation_head.weight"].T + w["rotation_head.bias"]


def cross_entropy(o: Tensor, y: list[int]) -> Tensor:
    return sum(row.exp().sum().log() - row[k] for row, k in zip(o, y)) / len(y)


class Naive:
    """Adapt to one image after another, with one pass per view and plain SGD."""

    def __init__(self, model: Algorithm, hp: Any) -> None:
        self.hp, self.generator = hp, torch.Generator().manual_seed(hp.seed)
        self.source = {k: v.detach().clone() for k, v in model.named_parameters()}
        self.moving = [
            k
            for k in self.source
            if k.startswith(("backbone.block1", "backbone.block2", "backbone.block3"))
            or (k.startswith("rotation") and not hp.fix_branch)
        ]
        self.restart()

    def restart(self) -> None:
        self.w = {k: v.clone().requires_grad_(k in self.moving) for k, v in self.source.items()}
        self.velocity = {k: torch.zeros_like(v) for k, v in self.w.items()}

    def learn(self, images: list[Tensor]) -> None:
        rounds = 1
        while rounds * len(images) < self.hp.views:
            rounds += 1
        copies = images * rounds
        drawn = draw_augmentation(len(copies), self.generator)
        turns = torch.randint(4, (len(copies),), generator=self.generator).tolist()
        views = augment(torch.stack(copies), drawn)
        o = torch.cat([logits(turn(view, k)[None], self.w, rotation=True) for view, k in zip(views, turns)])
        gradients = torch.autograd.grad(cross_entropy(o, turns), [self.w[k] for k in self.moving])
        with torch.no_grad():
            for k, g in zip(self.moving, gradients):
                self.velocity[k] = self.hp.momentum * self.velocity[k] + g
                self.w[k] -= self.hp.lr * self.velocity[k]

    def __call__(self, x: Tensor) -> Tensor:
        answers = []
        for group in [[image] for image in x] if self.hp.per == "image" else [list(x)]:
            if self.hp.episodic:
                self.restart()
            upright = [logits(image[None], self.w, rotation=True).softmax(1)[0, 0].item() for image in group]
            unsure = [image for image, p in zip(group, upright) if self.hp.threshold == 1 or p < self.hp.threshold]
            for _ in range(self.hp.steps if unsure else 0):
                self.learn(unsure)
            answers.append(logits(torch.stack(group), self.w, rotation=False).detach())
        return torch.cat(answers)


VARIANTS: dict[str, dict[str, Any]] = {
    "online": {},
    "standard": {"steps": 3, "episodic": True},
    "batch": {"per": "batch"},
    "batch, several views": {"per": "batch", "views": 10, "steps": 2},
    "shared blocks only": {"fix_branch": True},
    "momentum": {"momentum": 0.9, "steps": 2},
    "episodic with momentum": {"momentum": 0.9, "steps": 2, "episodic": True},
    "unsure only": {"threshold": 0.2265},
    "unsure only, batch": {"threshold": 0.2265, "per": "batch"},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_updates_equal_the_naive_ones(variant: str, model: Algorithm, stream: list[Tensor]) -> None:
    adapter = adapt(model, "ttt", **({"lr": 0.1, "views": 3} | VARIANTS[variant]))
    naive = Naive(model, adapter.hp)
    assert set(adapter.moving) == set(naive.moving)
    for x in stream:
        torch.testing.assert_close(adapter(x), naive(x), rtol=1e-9, atol=1e-9)
        for key, p in adapter.moving.items():
            torch.testing.assert_close(p, naive.w[key], rtol=1e-9, atol=1e-9, msg=key)
    assert any(not torch.equal(p, adapter.start[k]) for k, p in adapter.moving.items())


def test_some_images_of_these_are_sure_and_some_are_not(model: Algorithm, stream: list[Tensor]) -> None:
    """Otherwise the threshold above would not be tested."""
    adapter = adapt(model, "ttt", threshold=0.2265)
    assert 0 < sum(len(adapter.choose(x)) for x in stream) < sum(map(len, stream))


def test_a_threshold_of_one_leaves_out_none_even_where_rounding_makes_an_image_sure(
    model: Algorithm, stream: list[Tensor]
) -> None:
    with torch.no_grad():
        model.rotation_head.bias[0] += 1000
    assert (model.rotation_logits(stream[0]).softmax(1)[:, 0] == 1).all()
    for threshold, moves in ((1.0, True), (0.99, False)):
        adapter = adapt(model, "ttt", threshold=threshold, views=4)
        draws = adapter.generator.get_state()
        expected = model.predict(stream[0])
        got = adapter(stream[0])
        moved = any(not torch.equal(p, adapter.start[k]) for k, p in adapter.moving.items())
        assert moved is moves
        assert torch.equal(draws, adapter.generator.get_state()) is not moves
        assert torch.allclose(got, expected, rtol=1e-12) is not moves


def test_in_the_standard_form_an_image_knows_nothing_of_the_others(model: Algorithm, stream: list[Tensor]) -> None:
    together, alone = (adapt(model, "ttt", episodic=True, steps=2, views=3, lr=0.1) for _ in range(2))
    answers = together(stream[0])
    for image, answer in zip(stream[0], answers):
        torch.testing.assert_close(alone(image[None])[0], answer, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(alone.state_dict(), together.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [({"views": 4}, [4] * 4), ({"views": 4, "per": "batch"}, [4]), ({"views": 9, "per": "batch"}, [12])],
)
def test_no_more_views_than_asked_for(
    settings: dict[str, Any],
    sizes: list[int],
    model: Algorithm,
    stream: list[Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    adapter, seen = adapt(model, "ttt", **settings), []
    run = adapter.model.rotation_logits
    monkeypatch.setattr(adapter.model, "rotation_logits", lambda x: (seen.append(len(x)), run(x))[1])
    adapter(stream[0])
    assert seen == sizes


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_images_without_content(value: float, model: Algorithm) -> None:
    adapter = adapt(model, "ttt", steps=3, views=4)
    assert adapter(torch.full((3, 3, 16, 16), value, dtype=torch.double)).isfinite().all()
    assert all(t.isfinite().all() for t in adapter.state_dict().values() if t.is_floating_point())


def test_a_model_without_a_rotation_branch(trained: Trained) -> None:
    with pytest.raises(
        InputError, match="rotation branch, and a model trained with 'erm' has none: train with --algorithm ttt"
    ):
        adapt(trained("erm", steps=0), "ttt")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"views": 0}, "views must be at least 1, got 0"),
        ({"threshold": 0.0}, r"threshold must be above 0 and at most 1, got 0\.0"),
        ({"threshold": 1.5}, r"threshold must be above 0 and at most 1, got 1\.5"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"per": "domain"}, "per: 'domain'.*image, batch"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], message: str, trained: Trained) -> None:
    with pytest.raises(InputError, match=message):
        adapt(trained("ttt", steps=0), "ttt", **settings)


def stack(h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return f_Θ: affine maps with ReLUs between them, plus the negative part of the input."""
    out = h
    for i in range(len(weight)):
        out = weight[i] * out + bias[i]
        out = out.relu() if i < len(weight) - 1 else out
    return out + h.clamp(max=0) if len(weight) > 1 else out


@pytest.mark.parametrize("settings", [{}, {"per": "channel", "depth": 1}, {"optimizer": "sgd"}], ids=str)
def test_itta_with_the_rotation_objective(settings: dict[str, Any], model: Algorithm, stream: list[Tensor]) -> None:
    """Compare the first update of Θ. It acts after the shared blocks, and in prediction also after the last block."""
    adapter = adapt(model, "itta", objective="rotation", lr=1e-2, **settings)
    theta = {k: v.detach().clone().requires_grad_() for k, v in adapter.moving.items()}
    turns = torch.randint(4, (len(stream[0]),), generator=adapter.generator.clone_state()).tolist()
    w = {k: v.detach() for k, v in model.named_parameters()}

    def after(i: int, z: Tensor) -> Tensor:
        return stack(z, theta[f"theta.block{i}.weight"], theta[f"theta.block{i}.bias"])

    got = adapter(stream[0])
    o = torch.cat([logits(turn(x, k)[None], w, rotation=True, after=after) for x, k in zip(stream[0], turns)])
    shared = [k for k in theta if "block4" not in k]
    gradients = torch.autograd.grad(cross_entropy(o, turns), [theta[k] for k in shared])
    with torch.no_grad():
        for k, g in zip(shared, gradients):
            theta[k] -= 1e-2 * (g if settings.get("optimizer") == "sgd" else g / (g.abs() + 1e-8))
        for k, p in adapter.moving.items():
            torch.testing.assert_close(p, theta[k], rtol=1e-9, atol=1e-9, msg=k)
            assert torch.equal(p, adapter.start[k]) is ("block4" in k), k
        torch.testing.assert_close(got, logits(stream[0], w, rotation=False, after=after), rtol=1e-9, atol=1e-9)
    adapter(stream[1])
