"""A branch shares all blocks with its backbone except the last."""

import copy

import pytest
import torch
from torch import Tensor

from itta.nn import make_backbone
from itta.nn.backbone import Backbone
from itta.nn.branch import Branch
from itta.nn.small_cnn import SmallCNN


def moved(branch: Branch) -> Branch:
    with torch.no_grad():
        for p in branch.parameters():
            p.add_(torch.randn_like(p))
    return branch


def as_backbone(backbone: Backbone, branch: Branch) -> Backbone:
    """Copy the network and put the branch's tensors into the copy."""
    other = copy.deepcopy(backbone)
    other.load_state_dict(branch.replacements(), strict=False)
    return other


@pytest.mark.parametrize("name", ["small_cnn", "resnet18", "efficientnet_lite0"])
def test_starts_as_the_backbone_and_then_goes_its_own_way(name: str) -> None:
    torch.manual_seed(0)
    backbone = make_backbone(name, "none").eval()
    branch, x = Branch(backbone), torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(branch(backbone, x), backbone(x))
        before = backbone(x)
        moved(branch)
        assert torch.equal(backbone(x), before)
        assert not torch.equal(branch(backbone, x), before)
        assert torch.equal(branch(backbone, x), as_backbone(backbone, branch)(x))


def test_holds_the_last_block_and_nothing_else() -> None:
    backbone = make_backbone("resnet18", "none")
    assert set(Branch(backbone).replacements()) == {k for k in backbone.state_dict() if k.startswith("layer4.")}


def test_gradients_reach_the_shared_blocks_and_the_branch() -> None:
    torch.manual_seed(0)
    backbone = SmallCNN(width=8)
    branch = Branch(backbone)
    branch(backbone, torch.rand(2, 3, 16, 16)).square().sum().backward()
    assert all((p.grad is None) == name.startswith("block4") for name, p in backbone.named_parameters())
    assert all(p.grad is not None for p in branch.parameters())


def test_after_steps_in_after_shared_blocks_only() -> None:
    backbone, seen = SmallCNN(width=8), []

    def after(block: str, z: Tensor) -> Tensor:
        seen.append(block)
        return 2 * z

    branch, x = Branch(backbone), torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        got = branch(backbone, x, after)
        assert seen == ["block1", "block2", "block3"]
        assert torch.equal(got, backbone(x, lambda block, z: z if block == "block4" else 2 * z))


@pytest.mark.parametrize("frozen", [True, False])
def test_live_batch_normalisation_has_statistics_of_its_own(frozen: bool) -> None:
    torch.manual_seed(0)
    backbone = make_backbone("resnet18", "none").train()
    if frozen:
        backbone.freeze_bn()
    branch = Branch(backbone)
    before = {k: v.clone() for k, v in backbone.state_dict().items()}
    own = {k: v.clone() for k, v in branch.replacements().items()}
    branch(backbone, torch.rand(4, 3, 32, 32))
    changed = {k for k, v in backbone.state_dict().items() if not torch.equal(v, before[k])}
    own_changed = {k for k, v in branch.replacements().items() if not torch.equal(v, own[k])}
    assert not any(k.startswith("layer4.") for k in changed)
    assert bool(changed) is bool(own_changed) is not frozen
    assert all("running" in k or "tracked" in k for k in own_changed)
