"""Count and read data, and report problems."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from itta.cli import main
from itta.data.published import PUBLISHED
from itta.data.verification import verify
from itta.errors import InputError


@pytest.fixture
def small_pacs(tmp_path: Path, pacs: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PACS with two images per class, and a table that expects it."""
    for name, data in pacs.items():
        path = tmp_path / name.replace("kfold", "PACS")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    facts = PUBLISHED["PACS"]
    small = replace(
        facts,
        counts=(dict.fromkeys(facts.domains, 14),),
        class_counts={d: dict.fromkeys(facts.classes, 2) for d in facts.domains},
    )
    monkeypatch.setitem(PUBLISHED, "PACS", small)
    return tmp_path / "PACS"


def test_all_is_well(small_pacs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[tuple[int, int]] = []
    found = verify(small_pacs, report=lambda what, done, total: told.append((done, total)))
    assert (found.name, found.problems, found.unreadable) == ("PACS", [], {})
    assert told[-1] == (56, 56)
    assert main(["data", "check", str(small_pacs)]) == 0
    assert "14" in capsys.readouterr().out


def remove(root: Path) -> None:
    (root / "photo/dog/0.jpg").unlink()


def remove_domain(root: Path) -> None:
    (root / "sketch").rename(root.parent / "sketch")


def add_domain(root: Path) -> None:
    (root / "extra/dog").mkdir(parents=True)


def rename_class(root: Path) -> None:
    for domain in PUBLISHED["PACS"].domains:
        (root / domain / "dog").rename(root / domain / "puppy")


def empty(root: Path) -> None:
    (root / "photo/dog/0.jpg").write_bytes(b"")


def tear(root: Path) -> None:
    path = root / "photo/dog/0.jpg"
    path.write_bytes(path.read_bytes()[:-150])


@pytest.mark.parametrize(
    ("harm", "problems"),
    [
        (remove, ["photo: 13 images, 14 published", "photo/dog: 1 images, 2 published"]),
        (remove_domain, ["domain 'sketch' is missing"]),
        (add_domain, ["'extra' is not a domain of PACS"]),
        (rename_class, ["photo/dog: 0 images, 2 published", "'puppy' is not a class of PACS"]),
        (empty, ["0.jpg: the file is empty"]),
        (tear, ["0.jpg"]),
    ],
)
def test_what_is_wrong_is_named(small_pacs: Path, harm, problems: list[str], capsys) -> None:
    harm(small_pacs)
    found = verify(small_pacs)
    for problem in problems:
        assert any(problem in p for p in found.problems), found.problems
    assert main(["data", "check", str(small_pacs), "--json"]) == 2
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert result["problems"] == found.problems
    assert result["ok"] is False
    assert printed.err.startswith("itta: error: ")
    assert printed.err.count("\n") == 1


def test_unreadable_files_are_listed_unless_not_read(small_pacs: Path) -> None:
    empty(small_pacs)
    assert list(verify(small_pacs).unreadable) == [str(small_pacs / "photo/dog/0.jpg")]
    assert verify(small_pacs, decode=False).problems == []


def test_a_folder_of_another_name_is_what_it_is_called(small_pacs: Path) -> None:
    other = small_pacs.rename(small_pacs.parent / "mine")
    assert verify(other).name is None
    assert verify(other, "pacs").name == "PACS"
    with pytest.raises(InputError, match="unknown data set"):
        verify(other, "PUCS")


def test_either_version_of_terra_incognita_is_right(tmp_path: Path, monkeypatch, picture) -> None:
    facts = PUBLISHED["TerraIncognita"]
    versions = (dict.fromkeys(facts.domains, 20), dict.fromkeys(facts.domains, 10))
    monkeypatch.setitem(PUBLISHED, "TerraIncognita", replace(facts, counts=versions))
    for domain in facts.domains:
        for label in facts.classes:
            (tmp_path / domain / label).mkdir(parents=True)
            (tmp_path / domain / label / "1.jpg").write_bytes(picture())
    assert verify(tmp_path, "TerraIncognita").problems == []
    (tmp_path / "location_38/dog/1.jpg").unlink()
    assert verify(tmp_path, "TerraIncognita").problems[0].startswith("location_100: 10 images, 20 published")


def test_ones_own_data_are_counted_and_gaps_named(tmp_path: Path, picture, capsys) -> None:
    for name in ("a/cat/1.jpg", "a/dog/1.jpg", "b/cat/1.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(picture())
    found = verify(tmp_path)
    assert found.counts == {"a": {"cat": 1, "dog": 1}, "b": {"cat": 1}}
    assert found.problems == ["b/dog: no images"]
    assert main(["data", "check", str(tmp_path)]) == 2
    assert "b/dog: no images" in capsys.readouterr().out


def test_a_manifest_is_checked_too(tmp_path: Path, picture) -> None:
    (tmp_path / "1.jpg").write_bytes(picture())
    (tmp_path / "2.jpg").write_bytes(b"")
    manifest = tmp_path / "list.csv"
    manifest.write_text("domain,class,file\na,cat,1.jpg\nb,cat,2.jpg\n")
    assert list(verify(manifest).unreadable) == [str(tmp_path / "2.jpg")]


def test_no_data_at_all(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="domain/class/image"):
        verify(tmp_path)
    with pytest.raises(InputError, match="there is no folder"):
        verify(tmp_path / "none")


def test_many_problems_are_cut_on_the_screen(tmp_path: Path, capsys) -> None:
    (tmp_path / "a/cat").mkdir(parents=True)
    for i in range(30):
        (tmp_path / f"a/cat/{i}.jpg").write_bytes(b"")
    assert main(["data", "check", str(tmp_path)]) == 2
    assert "… and 10 more" in capsys.readouterr().out
