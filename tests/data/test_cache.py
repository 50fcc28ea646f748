"""Decoded images on disk: the same pixels, made once, made again if stale or damaged, not used if the disk is full."""

import json
import os
import shutil
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from itta.data import cache as cache_module
from itta.data.cache import cache_home
from itta.data.folder import load_folder, load_target
from itta.data.folder_images import InMemory
from itta.data.images import read_image
from itta.errors import InputWarning

SIZE = 8


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two domains of noise in several formats and shapes."""
    rng = np.random.default_rng(0)
    for domain in ("photo", "sketch"):
        for label in ("cat", "dog"):
            folder = tmp_path / "pets" / domain / label
            folder.mkdir(parents=True)
            for i, suffix in enumerate((".png", ".jpg", ".bmp")):
                noise = rng.integers(0, 256, (13 + i, 17, 3), dtype=np.uint8)
                Image.fromarray(noise).save(folder / f"{i}{suffix}")
    return tmp_path / "pets"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ITTA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "decoded"


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the names of the files that are decoded into caches."""
    names: list[str] = []

    def counting(path: str, size: int) -> np.ndarray:
        names.append(Path(path).name)
        return read_image(path, size)

    monkeypatch.setattr(cache_module, "read_image", counting)
    return names


def pixels(root: Path, domain: str = "photo", cache: bool = True, size: int = SIZE) -> torch.Tensor:
    images = load_folder(root, image_size=size, cache=cache).domains[domain]
    return images.read(np.arange(len(images)))


def test_pixels_are_the_same_with_and_without_and_again(root: Path, decoded: list[str]) -> None:
    expected = pixels(root, cache=False)
    assert torch.equal(pixels(root), expected)
    assert len(decoded) == 6
    assert torch.equal(pixels(root), expected)
    assert len(decoded) == 6
    assert expected.shape == (6, 3, SIZE, SIZE)
    assert expected.float().std() > 10  # noise, not zeros


def test_a_target_shares_the_cache_of_its_domain(root: Path, decoded: list[str]) -> None:
    expected = pixels(root)
    target = load_target(root, ("cat", "dog"), image_size=SIZE, domain="photo")
    assert torch.equal(target.read(np.arange(6)), expected)
    assert len(decoded) == 6


def test_sizes_and_domains_have_caches_of_their_own(root: Path, home: Path) -> None:
    shapes = [pixels(root, domain, size=size).shape for domain in ("photo", "sketch") for size in (4, SIZE)]
    assert shapes == [(6, 3, 4, 4), (6, 3, SIZE, SIZE)] * 2
    assert len(list(home.glob("*.npy"))) == 4


def test_prepare_tells_how_far_it_is(root: Path) -> None:
    told: list[tuple[int, int]] = []
    load_folder(root, image_size=SIZE).domains["photo"].prepare(lambda name, done, total: told.append((done, total)))
    assert told == [(i, 6) for i in range(1, 7)]


def change_pixels(root: Path) -> None:
    path = root / "photo/cat/0.png"
    Image.new("RGB", (13, 17), "red").save(path)


def change_time(root: Path) -> None:
    os.utime(root / "photo/cat/0.png", ns=(1, 1))


def add_file(root: Path) -> None:
    Image.new("RGB", (13, 17), "red").save(root / "photo/cat/9.png")


def remove_file(root: Path) -> None:
    (root / "photo/cat/0.png").unlink()


@pytest.mark.parametrize("change", [change_pixels, change_time, add_file, remove_file])
def test_a_stale_cache_is_replaced(root: Path, home: Path, decoded: list[str], change) -> None:
    pixels(root)
    change(root)
    decoded.clear()
    expected = pixels(root, cache=False)
    assert torch.equal(pixels(root), expected)
    assert len(decoded) == len(expected)
    assert len(list(home.glob("*.npy"))) == 1


def test_another_decoder_is_another_cache(root: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pixels(root)
    monkeypatch.setattr(cache_module, "decoder_version", lambda: "2")
    pixels(root)
    assert len(decoded) == 12


def flip_a_byte(home: Path) -> None:
    [file] = home.glob("*.npy")
    data = bytearray(file.read_bytes())
    data[-5] ^= 255
    file.write_bytes(data)


def cut_short(home: Path) -> None:
    [file] = home.glob("*.npy")
    file.write_bytes(file.read_bytes()[:-1])


def empty_it(home: Path) -> None:
    next(home.glob("*.npy")).write_bytes(b"")


def delete_pixels(home: Path) -> None:
    next(home.glob("*.npy")).unlink()


def break_index(home: Path) -> None:
    next(home.glob("*.json")).write_text("{")


def wrong_index(home: Path) -> None:
    [path] = home.glob("*.json")
    index = json.loads(path.read_text())
    path.write_text(json.dumps(index | {"checksums": [1] * 6}))


@pytest.mark.parametrize("harm", [flip_a_byte, cut_short, empty_it, delete_pixels, break_index, wrong_index])
def test_a_damaged_cache_is_made_anew(root: Path, home: Path, decoded: list[str], harm) -> None:
    expected = pixels(root)
    harm(home)
    assert torch.equal(pixels(root), expected)
    assert len(decoded) == 12
    assert torch.equal(pixels(root), expected)
    assert len(decoded) == 12


def test_a_cache_left_unfinished_is_not_taken_for_one(root: Path, home: Path) -> None:
    expected = pixels(root, cache=False)
    home.mkdir(parents=True)
    pixels(root)
    [index] = home.glob("*.json")
    left = home / f"{index.stem}.12345.tmp"  # left by a killed process
    left.write_bytes(b"half")
    index.unlink()
    assert torch.equal(pixels(root), expected)
    assert not left.exists()


def test_an_unreadable_image_that_is_mended_in_place_is_read(root: Path) -> None:
    path = root / "photo/cat/0.png"
    good = path.read_bytes()
    path.write_bytes(b"\0" * len(good))
    os.utime(path, ns=(1, 1))
    images = load_folder(root, image_size=SIZE).domains["photo"]
    assert len(images.read([1])) == 1
    path.write_bytes(good)
    os.utime(path, ns=(1, 1))  # same size and time, so the cache does not see the change
    assert torch.equal(pixels(root), pixels(root, cache=False))


COUNT = """
import sys
from pathlib import Path
from itta.data import cache, folder
made = []
def counting(path, size, read=cache.read_image):
    made.append(path)
    return read(path, size)
cache.read_image = counting
images = folder.load_folder(sys.argv[1], image_size=8).domains["photo"]
print(len(made) if images.read(range(6)).sum() > 0 else "empty", len(made))
"""


@pytest.mark.slow
def test_processes_side_by_side_make_it_once(root: Path) -> None:
    run = [sys.executable, "-c", COUNT, str(root)]
    processes = [subprocess.Popen(run, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    counts = [process.communicate(timeout=120)[0].split()[-1] for process in processes]
    assert sorted(counts) == ["0", "0", "6"]


def test_a_place_that_cannot_be_written_is_done_without(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("ITTA_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(InputWarning, match="ITTA_CACHE"):
        found = pixels(root)
    assert torch.equal(found, pixels(root, cache=False))


FULL = """
import resource, sys, warnings
warnings.simplefilter("error" if len(sys.argv) > 2 else "ignore")
resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700))
from itta.data.folder import load_folder, load_target
print(int(load_folder(sys.argv[1], image_size=8).domains["photo"].read(range(6)).sum()))
"""


@pytest.mark.slow
def test_a_full_disk_is_done_without(root: Path, home: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, str(root)], capture_output=True, text=True, timeout=120)
    assert int(done.stdout) == int(pixels(root, cache=False).sum()), done.stderr
    assert not [f.name for f in home.iterdir() if f.suffix != ".lock"]  # no incomplete file remains
    told = subprocess.run([sys.executable, "-c", FULL, str(root), "tell"], capture_output=True, text=True, timeout=120)
    assert "InputWarning" in told.stderr
    assert "File too large" in told.stderr


def test_a_disk_that_would_be_filled_is_spared(root: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_SPARE", 1e15)
    with pytest.warns(InputWarning, match="nearly full"):
        pixels(root)
    assert not list(home.glob("*.npy"))


def test_a_disk_that_forgets_is_done_without(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = pixels(root, cache=False)
    write = cache_module._write_pixels
    monkeypatch.setattr(cache_module, "_write_pixels", lambda *args: [c ^ 1 for c in write(*args)])
    images = load_folder(root, image_size=SIZE).domains["photo"]
    assert torch.equal(images.read(np.arange(6)), expected)
    assert isinstance(images._store, InMemory)


def test_threads_read_a_damaged_cache_at_once(root: Path, home: Path) -> None:
    expected = pixels(root)
    flip_a_byte(home)
    images = load_folder(root, image_size=SIZE).domains["photo"]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(images.read, [np.arange(6)] * 8))
    assert all(torch.equal(x, expected) for x in found)


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_home() == tmp_path / "cache"
    monkeypatch.setenv("ITTA_CACHE", "off")
    assert cache_home() is None
    monkeypatch.delenv("ITTA_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_home() == tmp_path / "xdg" / "itta"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_home() == tmp_path / ".cache" / "itta"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_home() == tmp_path / "Library" / "Caches" / "itta"


def test_off_means_nothing_is_written(root: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels(root, cache=False)
    monkeypatch.setenv("ITTA_CACHE", "off")
    pixels(root)
    assert not home.exists()


@pytest.mark.parametrize("shared", ["decoded", "cache"])
def test_a_place_that_others_may_write_is_done_without(root: Path, home: Path, shared: str) -> None:
    """Another user could put other pixels there."""
    first = pixels(root)
    folder = home if shared == "decoded" else home.parent
    folder.chmod(0o777)
    with pytest.warns(InputWarning, match=r"other users may write there; chmod go-w"):
        assert torch.equal(pixels(root), first)
    folder.chmod(0o1777 if shared == "cache" else 0o755)  # in /tmp, say, nobody can rename our folder
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(pixels(root), first)


def test_an_index_cannot_lead_elsewhere(root: Path, home: Path) -> None:
    first = pixels(root)
    for index in home.glob("*.json"):
        values = json.loads(index.read_text())
        shutil.move(home / values["pixels"], home.parent.parent / "elsewhere.npy")
        index.write_text(json.dumps(values | {"pixels": "../../elsewhere.npy"}))
    assert torch.equal(pixels(root), first)
    assert list(home.glob("*.npy"))
