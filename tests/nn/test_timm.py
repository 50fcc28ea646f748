"""timm's models as backbones.

timm needs torchvision.
"""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from itta.adapters import adapt
from itta.algorithms import Task
from itta.algorithms.itta import ITTA
from itta.errors import InputError
from itta.functional.jvp import Tape
from itta.hparams import default
from itta.nn import make_backbone
from itta.nn.backbone import Backbone
from itta.nn.tap import find_block

MODELS = {"resnet10t": 64, "vit_tiny_patch16_224": 32, "mobilenetv3_small_050": 64}


@pytest.fixture(scope="module", autouse=True)
def timm(torchvision_operators: None) -> None:
    if find_spec("timm") is None:
        pytest.skip("timm is not installed")


def built(name: str) -> Backbone:
    """Build a model with frozen batch normalisation and statistics that fit its random weights."""
    torch.manual_seed(0)
    backbone = make_backbone(f"timm:{name}", "none", MODELS[name])
    norms = [m for m in backbone.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None
        nn.init.uniform_(norm.weight, 0.5, 1.5)  # timm sets some weights to zero, which stops the gradient
    if norms:
        backbone.train()(torch.rand(8, 3, MODELS[name], MODELS[name]))
    return backbone.freeze_bn().train()


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_forward_until_and_resume_agree(name: str) -> None:
    backbone, x = built(name).eval(), torch.rand(2, 3, MODELS[name], MODELS[name])
    with torch.no_grad():
        features = backbone(x)
        plain = backbone.model(backbone.normalise(x))
        shifted = backbone(x, lambda block, z: z + 0.1)
        assert torch.equal(features, plain)
        for block in backbone.block_names:
            assert torch.equal(backbone.resume(block, backbone.until(block, x)), features)
            there = backbone.until(block, x, lambda block, z: z + 0.1)
            assert torch.equal(backbone.resume(block, there, lambda block, z: z + 0.1), shifted)
    assert features.shape == (2, backbone.dim)
    assert not torch.equal(features, shifted)
    assert list(backbone.block_shapes(MODELS[name])) == list(backbone.block_names)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_jvp(name: str) -> None:
    backbone = built(name).double()
    parameters = dict(backbone.named_parameters())
    tangents = {k: torch.randn_like(p) for k, p in parameters.items()}
    x = torch.rand(3, 3, MODELS[name], MODELS[name], dtype=torch.float64)
    with Tape() as tape:
        z = backbone(x)
    got = tape.jvp({parameters[k]: v for k, v in tangents.items()}, z)
    with sdpa_kernel(SDPBackend.MATH):
        values = {k: p.detach() for k, p in parameters.items()}
        expected = torch.func.jvp(lambda p: functional_call(backbone, p, (x,)), (values,), (tangents,))[1]
    assert (got - expected).norm() <= 1e-12 * expected.norm()
    assert expected.norm() > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("align_blocks", ["all", "last"])
def test_itta_trains_and_adapts(name: str, align_blocks: str) -> None:
    size = MODELS[name]
    task = Task(("a", "b", "c"), ("d", "e"), size, lambda: built(name))
    algorithm = ITTA(task, default(ITTA.Hparams, align_blocks=align_blocks, lr=1e-3))
    before = {k: v.clone() for k, v in algorithm.state_dict().items()}
    x, y = torch.rand(4, 3, size, size), torch.tensor([0, 1, 2, 0])
    logs = algorithm.update([(x, y)])
    assert logs["align"] > 0
    still = [k for k, p in algorithm.named_parameters() if torch.equal(p, before[k]) and not k.startswith("f_w")]
    assert still == []
    assert not torch.equal(algorithm.f_w.weight, before["f_w.weight"])

    algorithm.eval()
    for settings in ({}, {"per": "channel", "blocks": algorithm.backbone.block_names[-1:]}):
        adapter = adapt(algorithm, "itta", **settings)
        with torch.no_grad():
            source = algorithm.predict(x)
            fresh = adapter.model.head(adapter.model.backbone(x, adapter.adapt_block))
        assert torch.equal(fresh, source)
        adapted = adapter(x)
        assert torch.isfinite(adapted).all()
        assert not torch.equal(adapted, source)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_file_in_timms_own_names(name: str, tmp_path: Path) -> None:
    import timm

    torch.manual_seed(3)
    extra = {"img_size": MODELS[name]} if "vit" in name else {}
    theirs = timm.create_model(name, num_classes=10, **extra).eval()
    save_file(theirs.state_dict(), tmp_path / "theirs.safetensors")
    ours = make_backbone(f"timm:{name}", str(tmp_path / "theirs.safetensors"), MODELS[name]).eval()
    x = torch.rand(2, 3, MODELS[name], MODELS[name])
    with torch.no_grad():
        expected = theirs.forward_head(theirs.forward_features(ours.normalise(x)), pre_logits=True)
        assert torch.equal(ours(x), expected)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet10x", "timm cannot make 'resnet10x'"),
        ("swin_tiny_patch4_window7_224", "channels last"),
        ("hrnet_w18_small", "not one tensor"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_backbone(f"timm:{name}", "none")


def test_grad_cam_finds_maps_and_refuses_tokens() -> None:
    assert find_block(built("resnet10t").eval(), 64) == "layer4"
    with pytest.raises(InputError, match=r"blocks_11 gives tokens of shape \(5, 192\).*convolutional backbone"):
        find_block(built("vit_tiny_patch16_224").eval(), 32)
