import hashlib
import os
import pickle
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from itta.errors import InputError
from itta.nn import BACKBONES, make_backbone, weights
from itta.nn.resnet import resnet18


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    """A state dict like torchvision's: it has a classifier, and no counters."""
    torch.manual_seed(1)
    named = {k: torch.rand_like(v) for k, v in resnet18().state_dict().items() if v.is_floating_point()}
    return named | {"fc.weight": torch.rand(1000, 512), "fc.bias": torch.rand(1000)}


def assert_filled(backbone: torch.nn.Module, state: dict[str, Tensor]) -> None:
    for name, value in backbone.state_dict().items():
        assert name.endswith("num_batches_tracked") or torch.equal(value, state[name])


def save(path: Path, state: object) -> Path:
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    return path


@pytest.mark.parametrize("name", ["mine.safetensors", "mine.pth"])
def test_local_files(tmp_path: Path, state: dict[str, Tensor], name: str) -> None:
    backbone = make_backbone("resnet18", str(save(tmp_path / name, state)))
    assert_filled(backbone, state)
    assert backbone.frozen_bn
    assert not any("fc" in key for key in backbone.state_dict())


def test_a_local_file_fills_the_small_network_too(tmp_path: Path) -> None:
    torch.manual_seed(1)
    other = make_backbone("small_cnn")
    path = save(tmp_path / "small.safetensors", other.state_dict())
    torch.manual_seed(2)
    assert_filled(make_backbone("small_cnn", str(path)), other.state_dict())


def test_the_wheel() -> None:
    found = weights.read_wheel()
    backbone = make_backbone("efficientnet_lite0")
    assert set(found) == set(backbone.state_dict())
    assert_filled(backbone, found)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no weights file .*missing\.pth: give"):
        make_backbone("resnet18", str(tmp_path / "missing.pth"))


@pytest.mark.parametrize("name", ["junk.safetensors", "junk.pth", "empty.pth", "empty.safetensors"])
def test_a_foreign_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"" if "empty" in name else b"\x89PNG not weights at all" * 20)
    with pytest.raises(InputError, match=name):
        make_backbone("resnet18", str(path))


def test_weights_of_another_network(tmp_path: Path, state: dict[str, Tensor]) -> None:
    path = str(save(tmp_path / "eighteen.pth", state))
    with pytest.raises(
        InputError, match=r"eighteen\.pth does not fit this backbone: \d+ of \d+ .* first is 'layer1\.2"
    ):
        make_backbone("resnet34", path)
    wider = state | {"layer1.0.conv1.weight": torch.rand(65, 64, 3, 3)}
    with pytest.raises(InputError, match=r"layer1\.0\.conv1\.weight has shape \(65, 64, 3, 3\), expected \(64, 64"):
        make_backbone("resnet18", str(save(tmp_path / "wider.pth", wider)))


def test_not_a_state_dict(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must hold a state dict"):
        make_backbone("resnet18", str(save(tmp_path / "list.pth", [torch.rand(3)])))
    with pytest.raises(InputError, match="must hold a state dict"):
        make_backbone("resnet18", str(save(tmp_path / "nested.pth", {"model": {"a": torch.rand(3)}})))


class Malice:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickle_is_not_executed(tmp_path: Path, legacy: bool) -> None:
    trap, path = tmp_path / "executed", tmp_path / "model.pth"
    torch.save({"conv1.weight": Malice(trap)}, path, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(
        InputError,
        match=r"model\.pth is not loaded, because it holds more than tensors, and loading it could run code: save",
    ):
        make_backbone("resnet18", str(path))
    bare = tmp_path / "bare.pth"
    bare.write_bytes(pickle.dumps(Malice(trap)))
    with pytest.raises(InputError, match=r"bare\.pth"):
        make_backbone("resnet18", str(bare))
    assert not trap.exists()


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path / "cache"
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(cache))
    return cache


def come_from(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the ImageNet weights of resnet18 come from another address."""
    row = replace(BACKBONES["resnet18"], imagenet=partial(weights.download_weights, url))
    monkeypatch.setitem(BACKBONES, "resnet18", row)


def test_without_a_network(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    come_from("http://127.0.0.1:9/resnet18-f37072fd.pth", monkeypatch)
    with pytest.raises(InputError) as caught:
        make_backbone("resnet18")
    message = str(caught.value)
    assert str(empty_cache / "checkpoints" / "resnet18-f37072fd.pth") in message
    assert "--weights" in message
    assert "efficientnet_lite0" in message
    assert "\n" not in message


@pytest.fixture
def published(tmp_path: Path) -> Iterator[tuple[Path, str, list[str]]]:
    """A folder behind a real HTTP server: (folder, address, paths of the requests)."""
    folder, asked = tmp_path / "published", []
    folder.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            asked.append(self.path)

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_address[1]}", asked
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.usefixtures("empty_cache")
def test_download_once_with_the_right_checksum(
    published: tuple[Path, str, list[str]], state: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address, asked = published
    path = save(folder / "tmp.pth", state)
    name = f"resnet18-{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}.pth"
    path.rename(folder / name)
    come_from(f"{address}/{name}", monkeypatch)
    for _ in range(2):
        assert_filled(make_backbone("resnet18"), state)
    assert len(asked) == 1


def test_download_with_a_wrong_checksum(
    published: tuple[Path, str, list[str]],
    empty_cache: Path,
    state: dict[str, Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, address, _ = published
    save(folder / "resnet18-00000000.pth", state)
    come_from(f"{address}/resnet18-00000000.pth", monkeypatch)
    with pytest.raises(InputError, match="invalid hash"):
        make_backbone("resnet18")
    assert not (empty_cache / "checkpoints" / "resnet18-00000000.pth").exists()
    come_from(f"{address}/resnet18-11111111.pth", monkeypatch)
    with pytest.raises(InputError, match="404"):
        make_backbone("resnet18")
