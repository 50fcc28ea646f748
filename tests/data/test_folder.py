import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from itta.data import cache as cache_module
from itta.data import folder_images as folder_module
from itta.data import load_dataset
from itta.data.folder import list_images, load_folder, load_target
from itta.data.folder_images import FolderImages
from itta.data.images import read_image
from itta.errors import InputError


def put(root: Path, *names: str) -> None:
    for shade, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (6, 6), (shade, 0, 0)).save(root / name)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "pets"
    put(root, "sketch/dog/1.png", "sketch/cat/a.PNG", "photo/dog/10.png", "photo/dog/9.jpg", "photo/cat/sub/z.png")
    return root


def test_domains_classes_and_files_are_sorted(root: Path) -> None:
    data = load_folder(root, image_size=4)
    photo = data.domains["photo"]
    assert (data.name, data.classes, tuple(data.domains)) == ("pets", ("cat", "dog"), ("photo", "sketch"))
    assert [Path(name).name for name in photo.names] == ["z.png", "10.png", "9.jpg"]  # as text, as DomainBed sorts
    assert photo.labels.tolist() == [0, 1, 1]
    assert photo.read([2, 0]).shape == (2, 3, 4, 4)


def test_hidden_files_and_other_files_are_left_out(root: Path) -> None:
    put(root, "photo/dog/.hidden.png", "photo/cat/.trash/a.png", ".cache/dog/a.png")
    (root / "photo/dog/notes.txt").write_text("not an image")
    (root / "readme.txt").write_text("not a domain")
    data = load_folder(root, image_size=4)
    assert tuple(data.domains) == ("photo", "sketch")
    assert len(data.domains["photo"]) == 3


def image_folder(folder: Path, extensions: tuple[str, ...]) -> list[tuple[str, int]]:
    """The samples of torchvision's ImageFolder, by its rule: (path, number of the class)."""
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    return [
        (os.path.join(parent, name), number)
        for number, label in enumerate(classes)
        for parent, _, files in sorted(os.walk(folder / label, followlinks=True))
        for name in sorted(files)
        if name.lower().endswith(extensions)
    ]


TORCHVISION = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


@pytest.fixture
def nested(tmp_path: Path) -> Path:
    """Folders in folders, names that sort differently as text and as paths, and a link."""
    root = tmp_path / "nested"
    inside = (
        "t.png", "sub/z.png", "sub/a.JPG", "sub-1/b.png", "sub/deep/c.png", "sub.x/d.png", "B.png", "a.png", "10.png",
        "9.png", "Sub/e.png", "é.png",
    )  # fmt: skip
    put(root, *(f"photo/{label}/{name}" for label in ("dog", "Cat") for name in inside))
    put(tmp_path / "elsewhere", "1.png", "more/2.png")
    (root / "photo/dog/linked").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (root / "photo/dog/notes.txt").write_text("not an image")
    return root


def test_the_order_is_that_of_image_folder(nested: Path) -> None:
    expected = image_folder(nested / "photo", TORCHVISION)
    photo = load_folder(nested, image_size=4).domains["photo"]
    assert len(expected) == 2 * 12 + 2
    assert list(zip(photo.names, photo.labels.tolist())) == expected
    assert [*photo.names] != sorted(photo.names)  # another rule would not do


def test_image_folder_also_takes_dot_files_and_we_also_take_gifs(nested: Path) -> None:
    """The differences that the docs name, and no others."""
    put(nested, "photo/dog/.hidden.png", "photo/dog/.trash/a.png", "photo/dog/moving.gif")
    ours = set(load_folder(nested, image_size=4).domains["photo"].names)
    theirs = {name for name, _ in image_folder(nested / "photo", TORCHVISION)}
    dog = nested / "photo/dog"
    assert theirs - ours == {str(dog / ".hidden.png"), str(dog / ".trash/a.png")}
    assert ours - theirs == {str(dog / "moving.gif")}


def test_a_manifest_has_the_order_of_its_folder(nested: Path) -> None:
    names = load_folder(nested, image_size=4).domains["photo"].names
    lines = [f"photo,{Path(name).relative_to(nested).parts[1]},{name}" for name in reversed(names)]
    (nested.parent / "list.csv").write_text("\n".join(["domain,class,file", *lines]), encoding="utf-8")
    assert load_folder(nested.parent / "list.csv", image_size=4).domains["photo"].names == names


def test_a_link_that_leads_back_is_not_followed(root: Path) -> None:
    (root / "photo/cat/sub/up").symlink_to(root / "photo", target_is_directory=True)
    (root / "photo/dog/self").symlink_to(root / "photo/dog", target_is_directory=True)
    assert len(load_folder(root, image_size=4).domains["photo"]) == 3


def test_domains_can_be_chosen(root: Path) -> None:
    assert tuple(load_folder(root, image_size=4, domains=["sketch"]).domains) == ("sketch",)
    with pytest.raises(InputError, match="unknown domain 'sketsh'.*'sketch'"):
        load_folder(root, image_size=4, domains=["sketsh"])


def test_root_is_missing_or_empty(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        load_folder(tmp_path / "none", image_size=4)
    with pytest.raises(InputError, match="domain/class/image"):
        load_folder(tmp_path, image_size=4)


def test_a_domain_without_images_is_named(root: Path) -> None:
    (root / "empty/dog").mkdir(parents=True)
    with pytest.raises(InputError, match="no images in domain 'empty'"):
        load_folder(root, image_size=4)
    assert len(load_folder(root, image_size=4, domains=["photo", "sketch"]).domains) == 2


def test_a_missing_class_is_an_error_unless_allowed(root: Path) -> None:
    put(root, "photo/horse/1.png")
    with pytest.raises(InputError, match="'sketch' has no images of class 'horse'.*horse.*--allow-missing-classes"):
        load_folder(root, image_size=4)
    data = load_folder(root, image_size=4, allow_missing_classes=True)
    assert data.classes == ("cat", "dog", "horse")
    assert data.domains["sketch"].labels.tolist() == [0, 1]


def test_an_image_size_below_one_is_refused(root: Path) -> None:
    with pytest.raises(InputError, match="image_size"):
        load_folder(root, image_size=0)


def test_too_much_memory_is_told_in_gigabytes() -> None:
    with pytest.raises(InputError, match="GB of memory"):
        FolderImages([Path("a.png")] * 1000, [0] * 1000, image_size=10_000_000)


@pytest.mark.parametrize("cache", [True, False])
def test_each_image_is_decoded_once_even_by_many_threads(
    root: Path, cache: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[str] = []

    def counting(path: str, size: int) -> np.ndarray:
        decoded.append(path)
        return read_image(path, size)

    monkeypatch.setattr(cache_module if cache else folder_module, "read_image", counting)
    images = load_folder(root, image_size=4, cache=cache).domains["photo"]
    assert decoded == []
    with ThreadPoolExecutor(8) as pool:
        batches = list(pool.map(images.read, [[0, 1, 1], [1, 0, 2], [2, 2, 0]] * 8))
    assert sorted(decoded) == sorted(images.names)
    torch.testing.assert_close(batches[0][1], batches[1][0])


@pytest.mark.parametrize("cache", [True, False])
def test_what_is_read_is_the_callers_own(root: Path, cache: bool) -> None:
    images = load_folder(root, image_size=4, cache=cache).domains["photo"]
    images.read([0]).fill_(77)
    assert not (images.read([0]) == 77).any()


@pytest.mark.parametrize("cache", [True, False])
def test_an_unreadable_image_is_named_when_read(root: Path, cache: bool) -> None:
    (root / "photo/dog/9.jpg").write_bytes(b"")
    images = load_folder(root, image_size=4, cache=cache).domains["photo"]
    assert len(images.read([0, 1])) == 2
    with pytest.raises(InputError, match=r"9\.jpg"):
        images.read([0, 2])


def test_a_labelled_target_takes_the_models_class_order(tmp_path: Path) -> None:
    put(tmp_path, "cat/1.png", "dog/1.png")
    target = load_target(tmp_path, ("horse", "dog", "cat"), image_size=4)
    assert target.labels.tolist() == [2, 1]


def test_an_unlabelled_target_has_no_labels(tmp_path: Path) -> None:
    put(tmp_path, "10.png", "9.png")
    target = load_target(tmp_path, ("cat",), image_size=4)
    assert [Path(name).name for name in target.names] == ["9.png", "10.png"]
    assert target.labels.tolist() == [-1, -1]
    assert len(load_target(tmp_path / "9.png", ("cat",), image_size=4)) == 1


def test_a_target_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    with pytest.raises(InputError, match="no images"):
        load_target(tmp_path, ("cat",), image_size=4)
    put(tmp_path, "cat/1.png", "loose.png")
    with pytest.raises(InputError, match="both images and class folders"):
        load_target(tmp_path, ("cat",), image_size=4)
    put(tmp_path, "zebra/1.png")
    with pytest.raises(InputError, match="'zebra'.*Choices: cat, dog"):
        load_target(tmp_path, ("cat", "dog"), image_size=4)
    with pytest.raises(InputError, match="there is no folder"):
        load_target(tmp_path / "none", ("cat",), image_size=4)


def test_list_images_is_recursive_natural_and_without_repeats(tmp_path: Path) -> None:
    put(tmp_path, "10.png", "9.png", "b/2.jpg", "b/1.jpg", ".hidden.png")
    files = list_images([tmp_path / "10.png", tmp_path])
    assert [path.relative_to(tmp_path).as_posix() for path in files] == ["10.png", "9.png", "b/1.jpg", "b/2.jpg"]


def test_list_images_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file or folder"):
        list_images([tmp_path / "none.png"])
    with pytest.raises(InputError, match="no images in"):
        list_images([tmp_path])
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(InputError, match=r"a\.txt is not an image file.*\.png"):
        list_images([tmp_path / "a.txt"])


def test_load_dataset_takes_a_name_or_a_folder(root: Path) -> None:
    assert load_dataset("emoji", image_size=16, strict=True).strict
    assert load_dataset(root, image_size=4).classes == ("cat", "dog")
    put(root, "photo/horse/1.png")
    assert len(load_dataset(str(root), image_size=4, allow_missing_classes=True).classes) == 3


def test_load_dataset_says_what_it_takes(root: Path) -> None:
    with pytest.raises(InputError, match="'emojy'.*choices: emoji.*root/domain/class/image"):
        load_dataset("emojy", image_size=4)
    with pytest.raises(InputError, match="strict=False"):
        load_dataset(root, image_size=4, strict=True)
