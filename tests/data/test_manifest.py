"""Manifests: the same data as folders, and errors that name the line of a mistake."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from itta.data import load_dataset, manifest
from itta.data.folder import list_images, load_folder, load_target
from itta.data.manifest import is_manifest, read_manifest
from itta.errors import InputError
from itta.settings import DataAccess

FILES = ("photo/dog/10.png", "photo/dog/9.png", "photo/cat/1.png", "sketch/dog/1.png", "sketch/cat/1.png")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for name in FILES:
        path = tmp_path / "pets" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).save(path)
    return tmp_path / "pets"


def entries() -> list[dict[str, str]]:
    return [{"domain": f.split("/")[0], "class": f.split("/")[1], "file": f} for f in FILES]


def write(root: Path, kind: str, rows: list[dict[str, str]]) -> Path:
    path = root / f"list.{kind}"
    if kind == "csv":
        lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    elif kind == "json":
        path.write_text(json.dumps(rows, indent=1))
    else:
        path.write_text("".join(json.dumps(row) + "\n\n" for row in rows))
    return path


KINDS = ("csv", "json", "jsonl")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cache", [True, False])
def test_a_manifest_of_a_folder_is_the_folder(root: Path, kind: str, cache: bool) -> None:
    listed = load_dataset(write(root, kind, entries()[::-1]), image_size=4, access=DataAccess(cache=cache))
    folder = load_folder(root, image_size=4)
    assert (listed.name, listed.classes, tuple(listed.domains)) == ("list", folder.classes, tuple(folder.domains))
    for domain, images in folder.domains.items():
        assert listed.domains[domain].names == images.names
        assert listed.domains[domain].labels.tolist() == images.labels.tolist()
        every = np.arange(len(images))
        assert torch.equal(listed.domains[domain].read(every), images.read(every))


def test_columns_in_any_order_and_others_besides(root: Path) -> None:
    path = root / "list.csv"
    path.write_text('﻿file,note,class,domain\n"photo/dog/9.png","a, b",dog,photo\n', encoding="utf-8")
    [entry] = read_manifest(path)
    assert (entry.line, entry.domain, entry.label, entry.path) == (2, "photo", "dog", root / "photo/dog/9.png")


def test_absolute_paths_and_paths_upwards_are_the_users_own(root: Path, tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    manifest = tmp_path / "lists" / "a.csv"
    manifest.write_text(f"domain,class,file\na,x,../pets/photo/dog/9.png\nb,x,{root / 'photo/dog/10.png'}\n")
    assert tuple(load_dataset(manifest, image_size=4).domains) == ("a", "b")


def with_value(**change: object) -> list[dict[str, str]]:
    rows = entries()
    rows[2] = rows[2] | change  # type: ignore[operator]
    return rows


MISTAKES = {
    "no such file": ({"file": "photo/none.png"}, "there is no file .*none.png: write the path relative"),
    "not an image": ({"file": "notes.txt"}, "notes.txt is not an image file"),
    "no domain": ({"domain": ""}, "no domain: fill it in"),
    "no file": ({"file": " "}, "no file: fill it in"),
    "twice": ({"file": "photo/dog/9.png"}, "9.png is already in domain 'photo', in line"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_with_its_line(root: Path, kind: str, mistake: str) -> None:
    change, message = MISTAKES[mistake]
    path = write(root, kind, with_value(**change))
    line = {"csv": 4, "json": 12, "jsonl": 5}[kind]
    text = path.read_text().splitlines()
    assert str(entries()[2]["class"]) in "".join(text[line - 1 : line + 3])  # the line number is right
    with pytest.raises(InputError, match=f"{path.name}, line {line}: {message}"):
        read_manifest(path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.csv",
            "domain;class;file\n",
            "line 1: expected a column 'domain', got domain;class;file: begin the file with",
        ),
        ("a.csv", "", "line 1: expected a column 'domain', got none"),
        ("a.csv", "domain,class,file\n", "lists no images"),
        ("a.csv", "domain,class,file\nphoto,dog\n", "line 2: expected 3 cells"),
        ("a.csv", "domain,class,file\nphoto,dog,a.png,b\n", "line 2: expected 3 cells"),
        ("a.csv", 'domain,class,file\nphoto,"dog,a.png\n', "cannot read"),
        ("a.json", "[", r"not JSON \(.*line 1"),
        ("a.json", '[\n{"domain": "a"},\n]', r"not JSON \(.*line"),
        ("a.json", '{"domain": "a"}', "holds an object: expected a list"),
        ("a.json", "[]", "lists no images"),
        ("a.json", '[\n"x"]', "line 2: got text, expected an object"),
        ("a.json", '[{"domain": 3, "file": "a.png"}]', "line 1: domain is a number: write it as text"),
        ("a.jsonl", '{"domain": "a", "file": "x.png"\n', "line 1: not JSON"),
    ],
)
def test_a_file_that_is_no_manifest_is_told(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        read_manifest(tmp_path / name)


def test_bytes_that_are_no_text_and_a_file_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"domain,class,file\n\xff\xfe,a,b\n")
    with pytest.raises(InputError, match="save it as UTF-8"):
        read_manifest(tmp_path / "a.csv")
    with pytest.raises(InputError, match="there is no manifest"):
        load_dataset(tmp_path / "none.csv", image_size=4)


@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.jsonl"])
def test_a_manifest_has_a_largest_size(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "MAX_MANIFEST", 20)
    (tmp_path / name).write_text("domain,class,file\n" + "a,b,c.png\n" * 3)
    with pytest.raises(InputError, match=f"{name}.*larger than.*split it"):
        read_manifest(tmp_path / name)


def test_training_needs_every_class(root: Path) -> None:
    with pytest.raises(InputError, match="line 4: no class, and training needs one"):
        load_dataset(write(root, "csv", with_value(**{"class": ""})), image_size=4)
    rows = [row for row in entries() if row["file"] != "sketch/cat/1.png"]
    with pytest.raises(InputError, match="'sketch' has no images of class 'cat'.*list.csv"):
        load_dataset(write(root, "csv", rows), image_size=4)
    assert len(load_dataset(write(root, "csv", rows), image_size=4, allow_missing_classes=True).classes) == 2


def test_a_target_keeps_the_order_of_the_lines(root: Path) -> None:
    path = write(root, "csv", entries())
    target = load_target(path, ("dog", "cat"), image_size=4, domain="photo")
    assert [Path(name).name for name in target.names] == ["10.png", "9.png", "1.png"]
    assert target.labels.tolist() == [0, 0, 1]
    assert len(load_target(path, ("dog", "cat"), image_size=4)) == 5
    with pytest.raises(InputError, match="unknown domain 'foto'.*'photo'"):
        load_target(path, ("dog", "cat"), image_size=4, domain="foto")
    with pytest.raises(InputError, match="line 4: unknown class 'cat'"):
        load_target(path, ("dog", "horse"), image_size=4)


def test_a_target_has_labels_or_none(root: Path) -> None:
    path = root / "list.csv"
    path.write_text("domain,file\na,photo/dog/9.png\na,photo/cat/1.png\n")
    assert load_target(path, ("dog",), image_size=4).labels.tolist() == [-1, -1]
    path = write(root, "csv", with_value(**{"class": ""}))
    with pytest.raises(InputError, match="lines 2 and 4: only one has a class"):
        load_target(path, ("dog", "cat"), image_size=4)


def test_images_to_predict_can_be_listed(root: Path) -> None:
    path = write(root, "jsonl", entries())
    assert list_images([path]) == [root / name for name in FILES]


def test_a_folder_with_a_suffix_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "photos.csv").mkdir()
    assert not is_manifest(tmp_path / "photos.csv")
    assert is_manifest("somewhere/list.CSV")
