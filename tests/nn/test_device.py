"""The device that computes: found, refused with a cure, and put to use in two precisions."""

import pytest
import torch

from itta.errors import InputError
from itta.functional.jvp import Tape
from itta.nn.device import describe_device, device_of, place, resolve_device
from itta.nn.small_cnn import SmallCNN
from itta.seeds import seed_all
from tests.fixtures.toy import TinyBN

CUDA = torch.cuda.is_available()
MPS = torch.backends.mps.is_available()


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = SmallCNN(width=8)


def test_auto_takes_a_gpu_if_there_is_one() -> None:
    assert resolve_device("auto").type == ("cuda" if CUDA else "mps" if MPS else "cpu")
    assert resolve_device(torch.device("cpu")).type == "cpu"


@pytest.mark.skipif(CUDA, reason="has CUDA")
@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_an_absent_gpu_is_refused_with_a_cure(name: str) -> None:
    with pytest.raises(InputError, match=rf"{name} is not available: torch .*or choose the device cpu\.$") as caught:
        resolve_device(name)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(MPS, reason="has MPS")
def test_absent_mps_is_refused() -> None:
    with pytest.raises(InputError, match="needs macOS"):
        resolve_device("mps")


@pytest.mark.parametrize("name", ["gpu", "", "cuda:x", "meta", "xpu"])
def test_other_devices_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="unknown device.*Choices: auto, cpu, cuda, cuda:N, mps"):
        resolve_device(name)


def test_more_gpus_than_there_are_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InputError, match="there is no cuda:2: torch finds 2 GPUs, cuda:0 to cuda:1"):
        resolve_device("cuda:2")
    assert resolve_device("cuda:1") == torch.device("cuda:1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(InputError, match="finds no GPU. Check nvidia-smi"):
        resolve_device("cuda")


def test_place_moves_the_model_and_sets_its_precision() -> None:
    model = place(Model(), "cpu", "bf16")
    assert (device_of(model).type, model.backbone.precision) == ("cpu", "bf16")
    assert describe_device(device_of(model)) == "cpu"
    assert place(model, "cpu").backbone.precision == "float32"


def test_bf16_computes_blocks_in_bfloat16_and_hands_on_float32() -> None:
    torch.manual_seed(0)
    backbone, x = TinyBN().eval(), torch.rand(2, 3, 16, 16)
    exact = backbone(x)
    backbone.precision = "bf16"
    inside, seen = [], []
    backbone.block2[0].register_forward_hook(lambda module, args, out: inside.append(out.dtype))

    def look(block: str, z: torch.Tensor) -> torch.Tensor:
        seen.append((z.dtype, torch.is_autocast_enabled("cpu")))
        return z

    rounded = backbone(x, look)
    assert inside == [torch.bfloat16]
    assert seen == [(torch.float32, False)] * 4
    assert rounded.dtype == torch.float32
    assert not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=0.05, atol=0.02)


def test_a_tape_of_a_pass_in_bf16_gives_the_tangent_in_float32() -> None:
    """The alignment of ITTA computes in float32, whatever the precision of the pass."""
    torch.manual_seed(0)
    backbone, x = TinyBN().train().freeze_bn(), torch.rand(4, 3, 16, 16)
    directions = {p: torch.randn_like(p) for p in backbone.parameters()}
    tangents = []
    for precision in ("float32", "bf16"):
        backbone.precision = precision  # type: ignore[assignment]
        with Tape() as tape:
            z = backbone(x)
        tangents.append(tape.jvp(directions, z))
    assert tangents[1].dtype == torch.float32
    torch.testing.assert_close(tangents[1], tangents[0], rtol=0.05, atol=0.05 * float(tangents[0].abs().max()))


def test_one_seed_sets_the_generators_of_all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    seed_all(7)
    assert seeded == [7]
