"""The identity of data is that of their files, not of their path's spelling."""

import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

from itta.data import check_unchanged, load_dataset, open_data
from itta.errors import InputError
from itta.trial import Trial


def fingerprint(data: str | Path) -> str:
    return load_dataset(data, image_size=8).fingerprint


@pytest.fixture
def own(photos: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(photos, tmp_path / "photos"))


def test_every_spelling_of_a_path_is_the_same_data(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own.parent)
    (own.parent / "link").symlink_to(own)
    spellings = ["photos", "photos/", "./photos", "../" + own.parent.name + "/photos", str(own), "link"]
    assert len({fingerprint(s) for s in spellings}) == 1
    trials = [
        Trial(str(load_dataset(s, image_size=8).path), "erm", ("dawn",), fingerprint=fingerprint(s)) for s in spellings
    ]
    assert len({(t.key, t.seed, t.dataset) for t in trials}) == 1


def test_a_copy_is_the_same_data_and_a_change_is_not(own: Path, tmp_path: Path) -> None:
    before = fingerprint(own)
    copy = Path(shutil.copytree(own, tmp_path / "elsewhere" / "pictures"))
    assert fingerprint(copy) == before
    here, there = (Trial(str(p), "erm", ("dawn",), fingerprint=before) for p in (own, copy))
    assert (here.key, here.seed) == (there.key, there.seed)
    assert here.differences(there) == []
    os.rename(own / "dawn" / "down" / "0.png", own / "dawn" / "down" / "9.png")
    assert fingerprint(own) != before
    with pytest.raises(InputError, match="added, removed or changed"):
        check_unchanged(here, open_data(here))
    Image.new("RGB", (9, 9)).save(copy / "noon" / "down" / "new.png")
    assert fingerprint(copy) not in (before, fingerprint(own))


def test_a_manifest_has_one_too(own: Path) -> None:
    files = sorted(own.rglob("*.png"))
    rows = [f"{f.parent.parent.name},{f.parent.name},{f.relative_to(own.parent)}" for f in files]
    manifest = own.parent / "list.csv"
    manifest.write_text("\n".join(["domain,class,file", *rows]) + "\n")
    assert fingerprint(manifest)
    assert load_dataset(manifest, image_size=8).path == manifest.resolve()


def test_data_known_by_name_have_none() -> None:
    emoji = load_dataset("emoji", image_size=8)
    assert (emoji.fingerprint, emoji.path) == ("", None)
