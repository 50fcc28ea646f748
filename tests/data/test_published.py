"""The counts of the table add up, and names are found as folders."""

from pathlib import Path

import pytest

from itta.data import load_dataset
from itta.data.published import MNIST_NAMES, PUBLISHED, find_published, locate
from itta.errors import InputError
from itta.settings import DataAccess

TOTALS = {  # Gulrajani and Lopez-Paz, ICLR 2021, section 3
    "RotatedMNIST": 70_000,
    "ColoredMNIST": 70_000,
    "VLCS": 10_729,
    "PACS": 9_991,
    "OfficeHome": 15_588,
    "TerraIncognita": 24_788,
    "DomainNet": 586_575,
}


def test_totals_are_those_of_domainbeds_paper() -> None:
    assert {name: sum(p.counts[0].values()) for name, p in PUBLISHED.items()} == TOTALS


@pytest.mark.parametrize("facts", PUBLISHED.values(), ids=lambda p: p.name)
def test_each_entry_is_consistent(facts) -> None:
    assert not facts.classes or len(facts.classes) == facts.n_classes
    assert all(tuple(counts) == facts.domains for counts in facts.counts)
    for domain, by_class in facts.class_counts.items():
        assert sum(by_class.values()) == facts.counts[0][domain]
        assert tuple(by_class) == facts.classes
    if facts.name not in MNIST_NAMES:
        assert list(facts.domains) == sorted(facts.domains)  # DomainBed's environments are numbered in this order
    assert facts.inside or facts.name in (*MNIST_NAMES, "TerraIncognita", "DomainNet")
    for source in facts.sources:
        assert source.url.startswith(("http://", "https://"))
        assert bool(source.page) == ("drive.usercontent" in source.url)


def test_a_missing_checksum_says_so() -> None:
    sources = {name: p.to_json()["sources"] for name, p in PUBLISHED.items()}
    assert sources["PACS"][0]["md5"] == "none published"
    assert len(sources["RotatedMNIST"][0]["md5"]) == 32


def test_names_are_found_whatever_their_case() -> None:
    assert find_published("pacs").name == "PACS"
    with pytest.raises(InputError, match="'PAC'.*'PACS'"):
        find_published("PAC")


def test_a_name_leads_to_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "office_home").mkdir(parents=True)
    assert locate("OfficeHome", tmp_path / "data") == tmp_path / "data" / "office_home"
    monkeypatch.setenv("ITTA_DATA", "data")
    assert locate("OfficeHome") == Path("data/office_home")
    with pytest.raises(InputError, match="itta data get VLCS --root data"):
        locate("VLCS")
    monkeypatch.delenv("ITTA_DATA")
    with pytest.raises(InputError, match="--data-root DIR or ITTA_DATA=DIR"):
        locate("OfficeHome")


def test_paths_stay_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate("photos/") == Path("photos")
    (tmp_path / "PACS").mkdir()
    (tmp_path / "data" / "PACS").mkdir(parents=True)
    monkeypatch.setenv("ITTA_DATA", "data")
    assert locate("PACS") == Path("PACS")  # a folder in the current directory comes first
    assert locate("PACS", "data") == Path("data/PACS")  # unless the root is given


def test_a_known_name_is_loaded_from_the_root(tmp_path: Path, pacs: dict[str, bytes]) -> None:
    for name, data in pacs.items():
        path = tmp_path / name.replace("kfold", "PACS")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    data = load_dataset("PACS", image_size=4, access=DataAccess(data_root=tmp_path))
    assert tuple(data.domains) == PUBLISHED["PACS"].domains
    assert data.classes == PUBLISHED["PACS"].classes
