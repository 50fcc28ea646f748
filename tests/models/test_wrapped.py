"""itta.wrap: any network as a model that adapters accept, and every adapter that fits on three of them."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import itta
from itta.adapters import ADAPTERS, Adapter, adapt
from itta.algorithms import Task
from itta.algorithms.erm import ERM
from itta.errors import InputError
from itta.hparams import default
from itta.models.wrapped import Wrapped
from itta.nn.backbone import IMAGENET_MEAN, IMAGENET_STD
from itta.nn.resnet import resnet18
from tests.fixtures.networks import PlainResNet18, TokenNetwork, sequential_cnn
from tests.fixtures.toy import FEW_VIEWS

pytestmark = pytest.mark.slow

IMAGENET = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
OWN_TRAINING = {"ttt": "rotation branch", "ttt++": "contrastive head", "mt3": "projector", "itta": "learned loss f_w"}
BATCH_NORM = {name for name, cls in ADAPTERS.items() if cls.needs.batch_norm}


class Times(nn.Module):
    """Multiply by a number, or by another one each time."""

    def __init__(self, by: float | None) -> None:
        super().__init__()
        self.by = by

    def forward(self, z: Tensor) -> Tensor:
        return z * (torch.rand(1) if self.by is None else self.by)


def plain_resnet() -> nn.Module:
    """Random weights, and statistics that fit them."""
    torch.manual_seed(0)
    net = PlainResNet18().train()
    for m in net.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.momentum = None
            nn.init.uniform_(m.weight, 0.5, 1.5)
    with torch.no_grad():
        net(torch.rand(16, 3, 32, 32))
    return net.eval()


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make().eval()


def images(n: int = 8, size: int = 16, seed: int = 1) -> Tensor:
    return torch.rand(n, 3, size, size, generator=torch.Generator().manual_seed(seed))


def source_batches(size: int = 16) -> dict[str, list[tuple[Tensor, Tensor]]]:
    return {d: [(images(4, size, seed), torch.arange(4) % 3)] for seed, d in enumerate(("one", "two"), 10)}


def state_of(net: nn.Module) -> dict[str, Any]:
    hooks = {name: (len(m._forward_hooks), len(m._forward_pre_hooks)) for name, m in net.named_modules()}
    modes = {name: (type(m), m.training) for name, m in net.named_modules()}
    tensors = {k: v.clone() for k, v in net.state_dict().items()}
    return {"hooks": hooks, "modes": modes, "tensors": tensors, "learn": [p.requires_grad for p in net.parameters()]}


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    equal = all(torch.equal(v, b["tensors"][k]) for k, v in a["tensors"].items())
    return equal and all(a[k] == b[k] for k in ("hooks", "modes", "learn"))


@pytest.mark.parametrize(
    ("make", "blocks", "head"),
    [
        (plain_resnet, ("layer1", "layer2", "layer3", "layer4"), "fc"),
        (lambda: seeded(sequential_cnn), ("2", "5", "11"), "14"),
        (lambda: seeded(TokenNetwork), ("layers.0", "layers.1", "layers.2"), "classifier"),
    ],
)
def test_parts_are_found(make: Callable[[], nn.Module], blocks: tuple[str, ...], head: str) -> None:
    net, x = make(), images()
    before, random_state = state_of(net), torch.get_rng_state()
    model = itta.wrap(net, image_size=16)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert (model.wiring.blocks, model.wiring.head, model.classes) == (blocks, head, ("0", "1", "2"))
    with torch.no_grad():
        out = net(x)
        expected = out if isinstance(out, Tensor) else out.logits
        assert torch.equal(model(x), expected)
        features = model.features(x)
        assert torch.equal(net.get_submodule(head)(features), expected)
        shifted = model.features(x, lambda block, z: z + 0.1)
        for block in model.backbone.block_names:
            assert torch.equal(model.backbone.resume(block, model.backbone.until(block, x)), features)
            there = model.backbone.until(block, x, lambda block, z: z + 0.1)
            assert torch.equal(model.backbone.resume(block, there, lambda block, z: z + 0.1), shifted)
    assert not torch.equal(features, shifted)
    assert list(model.backbone.block_shapes(16)) == list(model.backbone.block_names)
    assert same(state_of(net), before)


def test_resume_does_not_run_earlier_blocks() -> None:
    model = itta.wrap(plain_resnet(), image_size=32)
    z = model.backbone.until("layer3", images(2, 32))
    ran: list[str] = []
    for name in ("layer1", "layer2", "layer3", "layer4"):
        tapped = model.backbone.model.get_submodule(name).module
        tapped.register_forward_hook(lambda m, args, out, name=name: ran.append(name))
    model.backbone.resume("layer3", z)
    assert ran == ["layer4"]


def test_mean_and_std_normalise_before_the_network() -> None:
    net, x = plain_resnet(), images(size=32)
    model = itta.wrap(net, image_size=32, **IMAGENET)
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in IMAGENET.values())
    with torch.no_grad():
        torch.testing.assert_close(model(x), net((x - mean) / std), rtol=1e-5, atol=1e-5)


class Skipping(nn.Module):
    """The input of the second block also goes past it, and past the third."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Conv2d(n, 8, 3, padding=1) for n in (3, 8, 8))
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.one(x)
        return self.fc((self.three(self.two(z).relu()) + z).mean((2, 3)))


class Unlike(nn.Module):
    """It has no linear layer that gives the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x).mean((2, 3))).log_softmax(1)


def test_blocks_with_a_connection_past_them_are_refused() -> None:
    net = seeded(Skipping)
    assert itta.wrap(net, blocks=("one",), image_size=16).backbone.block_names == ("one",)
    with pytest.raises(InputError, match="two cannot be a block of Skipping: a connection goes past it"):
        itta.wrap(net, blocks=("one", "two"), image_size=16)


def test_without_a_last_linear_layer_the_features_are_the_logits() -> None:
    net, x = seeded(Unlike), images()
    model = itta.wrap(net, image_size=16)
    assert model.wiring.head == ""
    with torch.no_grad():
        assert torch.equal(model(x), net(x))
        assert torch.equal(model.features(x), net(x))
    with pytest.raises(InputError, match="fc is not the last layer of Unlike"):
        itta.wrap(net, head="fc", image_size=16)
    with pytest.raises(InputError, match=r"a wrapped Unlike has no such head"):
        adapt(model, "t3a")
    assert adapt(model, "itta+")(x).shape == (8, 3)


@pytest.mark.parametrize(
    ("net", "settings", "message"),
    [
        (nn.Flatten(), {}, "expected a network with weights, and Flatten has none"),
        (nn.Conv2d(3, 4, 3), {}, r"expected a network that gives logits \[B, classes\], got shape \(2, 4,"),
        (nn.Linear(4, 2), {}, r"Linear cannot run on images of 224×224 pixels"),
        (nn.LSTM(4, 2), {}, "cannot run on images"),
        (nn.Linear, {}, "a torch.nn.Module, got the class Linear: call it first"),
        (torch.relu, {}, "expected a network, a torch.nn.Module, got builtin_function_or_method"),
        (sequential_cnn(), {"image_size": 16, "head": "0"}, "0 is not the last layer of Sequential"),
        (nn.Sequential(sequential_cnn(), Times(float("nan"))), {"image_size": 16}, "logits that are not finite"),
        (nn.Sequential(sequential_cnn(), Times(None)), {"image_size": 16}, "other logits when it sees the same images"),
        (nn.LazyLinear(3), {}, "LazyLinear has lazy layers.*run it once"),
        (sequential_cnn().half(), {"image_size": 16}, r"weights in torch.float16.*\.float\(\) first"),
        (sequential_cnn().bfloat16(), {"image_size": 16}, "weights in torch.bfloat16"),
        (nn.Sequential(sequential_cnn(), nn.Softmax(1)), {"image_size": 16}, "gives probabilities: leave its softmax"),
        (nn.Sequential(sequential_cnn(), nn.Linear(3, 1)), {"image_size": 16}, "at least 2 classes, got 1"),
        (sequential_cnn(), {"image_size": 16, "classes": ("a", "b")}, "gives 3 logits, and 2 classes were named"),
        (sequential_cnn(), {"image_size": 16, "mean": (0.5, 0.5, 0.5)}, "mean and std go together"),
        (sequential_cnn(), {"image_size": 16, "mean": (0.5,), "std": (1.0,)}, "mean must have a value for red"),
        (sequential_cnn(), {"image_size": 16, "blocks": ("20",)}, "unknown submodule '20'"),
        (sequential_cnn(), {"image_size": 16, "block": ("2",)}, "unknown setting of itta.wrap 'block'.*'blocks'"),
        (sequential_cnn(), {"image_size": 16, "blocks": ("13",)}, r"13 cannot be a block.*not maps"),
    ],
)
def test_what_does_not_fit_is_one_line(net: nn.Module, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        itta.wrap(net, **settings)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_scripts_are_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="compiled by TorchScript, and cannot learn"):
        itta.wrap(torch.jit.trace(sequential_cnn().eval(), images()), image_size=16)


def test_a_compiled_network_is_wrapped_as_the_network_itself() -> None:
    """Compiling waits for the first call, which never comes."""
    net = seeded(sequential_cnn)
    one, other = (itta.wrap(n, image_size=16) for n in (net, torch.compile(net)))
    assert other.wiring == one.wiring
    assert torch.equal(adapt(one, "itta+")(images()), adapt(other, "itta+")(images()))


@pytest.mark.parametrize("name", ["itta+", "source", "shot", "t3a"])
def test_images_take_the_precision_of_the_network(name: str) -> None:
    model = itta.wrap(seeded(sequential_cnn).double(), image_size=16)
    x = images()
    assert torch.equal(adapt(model, name)(x), adapt(model, name)(x.double()))
    assert torch.equal(adapt(model, name, guard=True)(x), adapt(model, name, guard=True)(x.double()))


def test_an_adapter_is_no_model() -> None:
    with pytest.raises(InputError, match="t3a is an adapter already: give the model"):
        adapt(adapt(itta.wrap(seeded(sequential_cnn), image_size=16), "t3a"), "itta+")


def test_arrays_are_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="expected images as a tensor .* got ndarray"):
        adapt(itta.wrap(seeded(sequential_cnn), image_size=16))(images().numpy())


def test_a_network_that_became_half_precise_is_refused() -> None:
    with pytest.raises(InputError, match="tent keeps its weights in float32"):
        adapt(itta.wrap(plain_resnet(), image_size=32).half(), "tent")


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-9)])
def test_tent_equals_tent_on_our_own_backbone(dtype: torch.dtype, tolerance: float) -> None:
    """Same weights, torchvision's names: the same answers along a stream, also where maps have one pixel."""
    net = plain_resnet().to(dtype)
    task = Task(("a", "b", "c"), ("d",), 32, resnet18)
    ours = ERM(task, default(ERM.Hparams)).eval().to(dtype)
    theirs = net.state_dict()
    ours.backbone.load_state_dict({k: v for k, v in theirs.items() if not k.startswith("fc.")})
    ours.head.load_state_dict({"weight": theirs["fc.weight"], "bias": theirs["fc.bias"]})
    one, other = adapt(itta.wrap(net, image_size=32, **IMAGENET), "tent"), adapt(ours, "tent")
    for seed in range(3):
        x = images(8, 32, seed).to(dtype)
        torch.testing.assert_close(one(x), other(x), rtol=0, atol=tolerance)
    assert not torch.equal(one(x), net(x))


def make_adapter(model: Wrapped, name: str) -> Adapter:
    return adapt(
        model, name, guard=False, **FEW_VIEWS.get(name, {}), **({"objective": "plain"} if name == "itta" else {})
    )


def check_every_adapter(net: nn.Module, size: int) -> None:
    """Those that fit run, reset exactly and leave the network alone; the others say what they need."""
    before = state_of(net)
    bare = itta.wrap(net, image_size=size)
    model = itta.collect(itta.wrap(net, image_size=size), source_batches(size))
    has_norm = any(isinstance(m, nn.BatchNorm2d) for m in net.modules())
    stream = [images(4, size, seed) for seed in (1, 2)]
    for name, need in OWN_TRAINING.items():
        with pytest.raises(InputError, match=need):
            adapt(model, name)
    for name in ADAPTERS.keys() - OWN_TRAINING.keys() | {"itta"}:
        if name in BATCH_NORM and not has_norm:
            with pytest.raises(InputError, match="adapts batch normalisation"):
                make_adapter(model, name)
            continue
        if name == "eata":
            with pytest.raises(InputError, match="needs a model with Fisher information"):
                make_adapter(bare, name)
        adapter = make_adapter(model, name)
        first = [adapter(x) for x in stream]
        assert all(torch.isfinite(logits).all() and logits.shape == (4, 3) for logits in first), name
        adapter.reset()
        assert all(torch.equal(adapter(x), logits) for x, logits in zip(stream, first)), name
        if name not in ("eata", "itta"):
            assert make_adapter(bare, name)(stream[0]).shape == (4, 3)
    guarded = adapt(model, "itta+")
    assert torch.isfinite(guarded(stream[0])).all()
    assert same(state_of(net), before)


@pytest.mark.slow
def test_every_adapter_on_a_plain_resnet() -> None:
    check_every_adapter(plain_resnet(), 32)


def test_every_adapter_on_a_sequence_without_batch_normalisation() -> None:
    check_every_adapter(seeded(sequential_cnn), 16)


@pytest.mark.slow
def test_every_adapter_on_a_vit_of_transformers(vit: nn.Module) -> None:
    model = itta.wrap(vit)
    assert (model.wiring.head, model.image_size, model.classes[0]) == ("classifier", 16, "LABEL_0")
    assert len(model.backbone.block_names) == 3
    with torch.no_grad():
        assert torch.equal(model(images()), vit(images()).logits)
    check_every_adapter(vit, 16)


@pytest.mark.slow
def test_a_timm_model_as_it_is(torchvision_operators: None) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    net = timm.create_model("resnet10t", num_classes=3).eval()
    model = itta.wrap(net, image_size=64)
    assert model.wiring.blocks == ("layer1", "layer2", "layer3", "layer4")
    assert model.wiring.head == "fc"
    assert adapt(model, "tent")(images(4, 64)).shape == (4, 3)


def test_adapt_wraps_by_itself() -> None:
    """README's three lines on a plain module, and inside no_grad."""
    layers = nn.Conv2d(3, 8, 7, 7), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    net = seeded(lambda: nn.Sequential(*layers))
    with torch.no_grad():
        adapter = itta.adapt(net, "shot", lr=1e-2)
    x = images(4, 224)
    first = adapter(x)
    assert not torch.equal(adapter(x), first)
    assert torch.equal(first, net(x).detach())


def test_a_batch_of_another_number_inside_the_pass() -> None:
    """Views that double the batch after a block, as ITTA's do."""
    model = itta.wrap(seeded(TokenNetwork), image_size=16)
    x = images(3)

    def double(block: str, z: Tensor) -> Tensor:
        return torch.cat([z, z]) if block == "layers_0" else z

    with torch.no_grad():
        z = model.features(x, double)
        torch.testing.assert_close(z, torch.cat([model.features(x)] * 2))


def test_a_wrapped_model_is_copied_with_its_taps() -> None:
    model = itta.wrap(seeded(TokenNetwork), image_size=16)
    other, x = copy.deepcopy(model), images(2)
    seen: list[str] = []

    def note(block: str, z: Tensor) -> Tensor:
        seen.append(block)
        return z

    with torch.no_grad():
        assert torch.equal(other.features(x, note), model.features(x))
    assert seen == ["layers_0", "layers_1", "layers_2"]
