"""itta.save and itta.load: wrapped networks with their statistics, and adapters with their whole state."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import itta
from itta.adapters import ADAPTERS, Adapter
from itta.adapters.tent import Tent
from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.errors import InputError
from itta.store.tensors import load_tensors, save_tensors
from tests.fixtures.networks import TokenNetwork, sequential_cnn
from tests.fixtures.toy import FEW_VIEWS, mark_slow

Trained = Callable[..., Algorithm]
EVERY = mark_slow(ADAPTERS, ("memo", "mt3", "ttt"))


def images(n: int = 6, seed: int = 1) -> Tensor:
    return torch.rand(n, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return sequential_cnn().eval()


@pytest.fixture
def stream(toy_batches: Callable[..., list[Batch]]) -> list[Tensor]:
    return [toy_batches(200 + i, n=12)[1][0] for i in range(3)]


def test_a_wrapped_network(net: nn.Module, tmp_path: Path) -> None:
    colours = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.3)}
    model = itta.wrap(net, blocks=("2", "5"), head="14", image_size=16, classes=("a", "b", "c"), **colours)
    itta.collect(model, {"here": [(images(), torch.arange(6) % 3)]})
    itta.save(model, tmp_path / "model")
    torch.manual_seed(1)
    other = sequential_cnn()  # the user's code makes it again, with any weights
    for module in (other, sequential_cnn):
        loaded = itta.load(tmp_path / "model", module=module)
        assert (loaded.wiring, loaded.classes) == (model.wiring, model.classes)
        with torch.no_grad():
            assert torch.equal(loaded(images()), model(images()))
        assert loaded.style_bank.domains == ("here",)
        for key, value in model.confusions.items():
            assert torch.equal(loaded.confusions[key], value)
        for seed in (1, 2):
            x = images(seed=seed)
            assert torch.equal(itta.adapt(loaded, "itta+")(x), itta.adapt(model, "itta+")(x))
    assert not torch.equal(other[0].weight, net[0].weight)  # what was given has not changed


def test_a_file_never_makes_a_network(net: nn.Module, tmp_path: Path) -> None:
    itta.save(itta.wrap(net, image_size=16), tmp_path)
    with pytest.raises(InputError, match=r"a file never makes itta import code.*module=YourNetwork\(\)"):
        itta.load(tmp_path)
    with pytest.raises(InputError, match="unknown submodule '2'"):
        itta.load(tmp_path, module=TokenNetwork())
    wider = nn.Sequential(*net[:9], nn.Conv2d(32, 48, 3), nn.GroupNorm(4, 48), *net[11:14], nn.Linear(48, 3))
    with pytest.raises(InputError, match=r"does not fit its model\.json.*size mismatch"):
        itta.load(tmp_path, module=wider)
    for module, message in ((lambda: 3, "gives 3"), ("math:pi", "is 3.14"), (lambda size: size, "without arguments")):
        with pytest.raises(InputError, match=message):
            itta.load(tmp_path, module=module)


@pytest.mark.parametrize(
    "change", [{"hparams": {}}, {"hparams": {"blocks": "2", "head": "14"}}, {"hparams": {"blocks": [], "head": 3}}]
)
def test_a_damaged_wiring_is_one_line(change: dict[str, Any], net: nn.Module, tmp_path: Path) -> None:
    itta.save(itta.wrap(net, image_size=16), tmp_path)
    about = json.loads((tmp_path / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps(about | change))
    with pytest.raises(InputError, match="is damaged or not ours"):
        itta.load(tmp_path, module=net)


@pytest.mark.parametrize("guard", [False, True])
@pytest.mark.parametrize("name", EVERY)
def test_an_adapter_goes_on_from_its_file(
    name: str, guard: bool, trained_for: Trained, stream: list[Tensor], tmp_path: Path
) -> None:
    model, path = trained_for(name), tmp_path / "state.safetensors"
    adapter = itta.adapt(model, name, guard=guard, **FEW_VIEWS.get(name, {}))
    adapter(stream[0])
    itta.save(adapter, path)
    other = itta.load(path, model)
    first, second = (a.describe() | {"interventions": {}} for a in (adapter, other))  # counts stay behind
    assert first == second
    assert all(torch.equal(other(x), adapter(x)) for x in stream[1:])


class OwnTent(Tent):
    name = "own_tent"


def test_an_adapter_of_the_users_own(trained: Trained, stream: list[Tensor], tmp_path: Path) -> None:
    model, path = trained("erm", batch_norm=True), tmp_path / "own.safetensors"
    adapter = itta.adapt(model, OwnTent, lr=1e-2)
    adapter(stream[0])
    itta.save(adapter, path)
    with pytest.raises(InputError, match="a file never makes itta import code"):
        itta.load(path, model)
    with pytest.raises(InputError, match="and 'tent' was given"):
        itta.load(path, model, adapter=Tent)
    assert torch.equal(itta.load(path, model, adapter=OwnTent)(stream[1]), adapter(stream[1]))


@pytest.mark.parametrize(
    ("settings", "told"), [({"lr": "nan"}, "lr must be a finite number"), ({"colour": 1}, "unknown hyper-parameter")]
)
def test_settings_in_a_file_are_its_fault(
    settings: dict[str, Any], told: str, trained: Trained, tmp_path: Path
) -> None:
    model, path = trained("itta"), tmp_path / "a.safetensors"
    itta.save(itta.adapt(model, "itta"), path)
    state, facts = load_tensors(path)
    save_tensors(path, state, facts | {"settings": settings})
    with pytest.raises(InputError, match=rf"a\.safetensors is damaged or not ours \({told}"):
        itta.load(path, model)
    save_tensors(path, {k: v * torch.nan if v.is_floating_point() else v for k, v in state.items()}, facts)
    with pytest.raises(InputError, match=r"a\.safetensors is damaged or not ours \(its weights are not finite"):
        itta.load(path, model)


def test_states_that_do_not_fit_are_one_line(trained: Trained, tmp_path: Path, net: nn.Module) -> None:
    model, path = trained("erm"), tmp_path / "state.safetensors"
    adapter: Adapter = itta.adapt(model, "shot")
    itta.save(adapter, path)
    with pytest.raises(InputError, match="is an adapter: give its model too"):
        itta.load(path)
    with pytest.raises(InputError, match=r"does not fit this model.*expected, none found"):
        itta.load(path, itta.wrap(net, image_size=16))
    tensors, facts = load_tensors(path)
    first = next(k for k in tensors if k.startswith("moving."))
    for wrong, message in (
        (tensors | {first: torch.zeros(1)}, r"does not fit this model.*\(1,\) found"),
        ({k: v for k, v in tensors.items() if k != "generator"}, "does not fit this model"),
    ):
        save_tensors(tmp_path / "wrong.safetensors", wrong, facts)
        with pytest.raises(InputError, match=message):
            itta.load(tmp_path / "wrong.safetensors", model)
    for change, message in (
        ({"adapter": "os:system"}, "a file never makes itta import code"),
        ({"settings": {"rate": 1}}, "unknown hyper-parameter 'rate'"),
        ({"settings": 3}, "damaged or not ours"),
        ({"format": "other"}, "does not hold an adapter of itta"),
        ({"format_version": 9}, "has format version 9"),
        ({"classes": 8}, "belongs to a model of 8 classes"),
    ):
        save_tensors(tmp_path / "wrong.safetensors", tensors, facts | change)
        with pytest.raises(InputError, match=message):
            itta.load(tmp_path / "wrong.safetensors", model)
    with pytest.raises(InputError, match="no model directory"):
        itta.load(tmp_path / "nowhere.safetensors", model)


def test_a_trained_model_is_saved_again_as_it_was(model: Path, tmp_path: Path) -> None:
    itta.save(itta.load(model), tmp_path / "copy")
    first, second = (json.loads((folder / "model.json").read_text()) for folder in (model, tmp_path / "copy"))
    assert first == second
    a, b = (load_file(folder / "model.safetensors") for folder in (model, tmp_path / "copy"))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[k], b[k]) for k in a)
    with pytest.raises(InputError, match="expected a model or an adapter to save, got Linear"):
        itta.save(nn.Linear(2, 2), tmp_path / "no")  # type: ignore[arg-type]
