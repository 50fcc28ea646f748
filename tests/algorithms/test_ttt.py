"""TTT's training against its formula: both ends of the network run by hand, image by image."""

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.algorithms.ttt import draw_turns

Build = Callable[..., Algorithm]


def turn(image: Tensor, k: int) -> Tensor:
    for _ in range(k):
        image = image.transpose(1, 2).flip(1)
    return image


def rotation_logits(model: Algorithm, x: Tensor) -> Tensor:
    z = (x - 0.5) / 0.5
    for block in ("block1", "block2", "block3"):
        z = model.backbone.get_submodule(block)(z)
    own = model.rotation_branch.replacements()
    z = F.conv2d(z, own["block4.conv.weight"], own["block4.conv.bias"], padding=1).clamp(min=0)
    z = F.group_norm(z, 8, own["block4.norm.weight"], own["block4.norm.bias"])
    return z.mean((2, 3)) @ model.rotation_head.weight.T + model.rotation_head.bias


def naive_losses(model: Algorithm, batches: list[Batch], cross_entropy: Any) -> tuple[Tensor, Tensor]:
    x, y = torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])
    if model.hp.ttt_rotation == "expand":
        pairs = [(image, k) for k in range(4) for image in x]
    else:
        pairs = list(zip(x, draw_turns(len(x), "random").tolist()))
    z = torch.cat([model.backbone(x) for x, _ in batches])
    p = model.hp.resnet_dropout
    z = z * (torch.rand_like(z) >= p) / (1 - p) if p > 0 else z
    logits = torch.cat([rotation_logits(model, turn(image, k)[None]) for image, k in pairs])
    return cross_entropy(model.head(z), y), cross_entropy(logits, torch.tensor([k for _, k in pairs]))


@pytest.mark.parametrize(
    ("sizes", "settings"),
    [
        ((6, 6, 6), {}),
        ((6, 5, 4), {"ttt_weight": 0.3}),
        ((4, 3), {"ttt_rotation": "expand"}),
        ((6, 5), {"resnet_dropout": 0.5}),
        ((1,), {}),
    ],
)
def test_three_updates(
    sizes: tuple[int, ...], settings: Any, assert_matches_naive: Callable[..., Any], naive_adam: Any, cross_entropy: Any
) -> None:
    def naive(model: Algorithm, batches: list[Batch], state: SimpleNamespace) -> dict[str, float]:
        if not hasattr(state, "adam"):
            state.adam = naive_adam(1e-2, 1e-2)
        parameters = list(model.parameters())
        loss, rotation = naive_losses(model, batches, cross_entropy)
        total = loss + model.hp.ttt_weight * rotation
        state.adam.step(parameters, torch.autograd.grad(total, parameters))
        return {"loss": loss.item(), "rotation": rotation.item()}

    run = assert_matches_naive("ttt", naive, sizes=sizes, **settings)
    torch.testing.assert_close(dict(run.algorithm.state_dict()), dict(run.model.state_dict()), rtol=1e-9, atol=1e-9)


def test_the_ends_share_all_but_the_last_block(build: Build) -> None:
    algorithm = build("ttt")
    algorithm.rotation_logits(torch.rand(2, 3, 16, 16)).sum().backward()
    idle = {name for name, p in algorithm.named_parameters() if p.grad is None}
    assert idle == {n for n, _ in algorithm.named_parameters() if n.startswith(("head.", "backbone.block4."))}
    for name, value in algorithm.rotation_branch.replacements().items():
        assert torch.equal(value, algorithm.backbone.get_parameter(name))
        assert value.data_ptr() != algorithm.backbone.get_parameter(name).data_ptr()


def test_turns_are_drawn_evenly() -> None:
    torch.manual_seed(0)
    drawn = Counter(draw_turns(4000, "random").tolist())
    assert set(drawn) == {0, 1, 2, 3}
    assert all(900 < count < 1100 for count in drawn.values())
    assert draw_turns(2, "expand").tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.slow
def test_it_learns_which_way_is_up(build: Build) -> None:
    """The images have a bright upper edge, so the rotation is visible."""
    algorithm = build("ttt", lr=3e-3)
    for step in range(60):
        torch.manual_seed(step)
        x, y = 0.3 * torch.rand(16, 3, 16, 16), torch.randint(3, (16,))
        x[:, :, :4] += 0.6
        logs = algorithm.update([(x, y)])
    assert logs["rotation"] < 0.2
