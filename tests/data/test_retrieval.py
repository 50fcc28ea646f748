"""Small data sets from a local server, arranged in DomainBed's folders."""

import gzip
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from itta.cli import main
from itta.data import load_dataset, retrieval
from itta.data.download import Patience
from itta.data.published import PUBLISHED
from itta.data.retrieval import retrieve
from itta.data.verification import verify
from itta.errors import InputError


def fetch(name: str, root: Path, server, **options) -> Path:
    return retrieve(name, root, url=server.url, patience=Patience(attempts=2, pause=0.0), **options)


def test_pacs_from_a_zip(server, tmp_path, archive_of, pacs, tree) -> None:
    server.files["PACS.zip"] = archive_of("zip", pacs | {"__MACOSX/kfold/._x": b"junk"})
    told: set[str] = set()
    folder = fetch("pacs", tmp_path, server, report=lambda what, done, total: told.add(what))
    assert folder == tmp_path / "PACS"
    assert tree(tmp_path) == {name.replace("kfold", "PACS") for name in pacs}  # no archive, no junk, nothing incomplete
    assert told == {"PACS.zip", "unpack PACS.zip"}
    assert len(load_dataset(folder, image_size=4).domains["sketch"]) == 14


def test_what_is_there_is_left_alone(server, tmp_path) -> None:
    (tmp_path / "PACS").mkdir()
    (tmp_path / "PACS" / "mine.txt").write_text("mine")
    fetch("PACS", tmp_path, server)
    assert not server.requests
    assert (tmp_path / "PACS" / "mine.txt").exists()


def test_an_interrupted_get_goes_on(server, tmp_path, archive_of, pacs) -> None:
    whole = server.files["PACS.zip"] = archive_of("zip", pacs)
    server.drop = [len(whole) // 2, 0]
    with pytest.raises(InputError, match="same command again"):
        fetch("PACS", tmp_path, server)
    fetch("PACS", tmp_path, server)
    assert server.requests[-1] == ("PACS.zip", f"bytes={len(whole) // 2}-")
    assert (tmp_path / "PACS/photo/dog/0.jpg").is_file()


def test_a_page_from_google_says_what_to_fetch_by_hand(server, tmp_path, archive_of, pacs) -> None:
    server.pages["PACS.zip"] = "text/html"
    with pytest.raises(InputError) as told:
        fetch("PACS", tmp_path, server)
    assert "web page" in str(told.value)
    assert "https://drive.google.com/uc?id=1JFr8f805nMUelQWWmfnJR3y4_SYoN5Pd" in str(told.value)
    assert f"save it as {tmp_path / 'PACS.zip'}" in str(told.value)
    (tmp_path / "PACS.zip").write_bytes(archive_of("zip", pacs))
    server.requests.clear()
    fetch("PACS", tmp_path, server)
    assert not server.requests
    assert (tmp_path / "PACS.zip").is_file()  # the user's own
    assert (tmp_path / "PACS/photo/dog/0.jpg").is_file()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"other/photo/dog/1.jpg": b"x"}, "expected a folder 'art_painting' inside.*right file"),
        ({"kfold/../../evil": b"x"}, "leads out of the folder"),
    ],
)
def test_a_wrong_archive_leaves_nothing_behind(server, tmp_path, archive_of, files, message) -> None:
    server.files["PACS.zip"] = archive_of("zip", files)
    with pytest.raises(InputError, match=message):
        fetch("PACS", tmp_path / "root", server)
    assert not (tmp_path / "root" / "PACS").exists()
    assert not (tmp_path / "root" / ".PACS.partial").exists()
    assert not (tmp_path / "evil").exists()


def test_a_truncated_archive_is_told(server, tmp_path, archive_of, pacs) -> None:
    server.files["PACS.zip"] = archive_of("zip", pacs)[:-100]
    with pytest.raises(InputError, match="cut short: delete it and download it again"):
        fetch("PACS", tmp_path, server)


def test_vlcs_from_a_tar(server, tmp_path, archive_of, picture) -> None:
    domains = PUBLISHED["VLCS"].domains
    server.files["VLCS.tar.gz"] = archive_of("tar.gz", {f"VLCS/{d}/dog/1.jpg": picture() for d in domains})
    assert sorted(p.name for p in fetch("VLCS", tmp_path, server).iterdir()) == list(domains)


def test_office_home_has_its_blank(server, tmp_path, archive_of, picture) -> None:
    top = "OfficeHomeDataset_10072016"
    files = {f"{top}/{d}/Bed/1.jpg": picture() for d in PUBLISHED["OfficeHome"].domains}
    server.files["office_home.zip"] = archive_of("zip", files)
    assert (fetch("OfficeHome", tmp_path, server) / "Real World/Bed/1.jpg").is_file()


@pytest.fixture
def domain_net(server, archive_of, picture):
    for domain in PUBLISHED["DomainNet"].domains:
        files = {f"{domain}/cup/{domain}_{i}.jpg": picture(i) for i in range(3)}
        server.files[f"{domain}.zip"] = archive_of("zip", files)
    server.files["domain_net_duplicates.txt"] = b"clipart/cup/clipart_1.jpg\nreal/cup/real_0.jpg\nreal/cup/gone.jpg\n"
    return server


def test_domain_net_without_its_duplicates(domain_net, tmp_path, tree) -> None:
    folder = fetch("DomainNet", tmp_path, domain_net)
    expected = {f"{d}/cup/{d}_{i}.jpg" for d in PUBLISHED["DomainNet"].domains for i in range(3)}
    assert tree(folder) == expected - {"clipart/cup/clipart_1.jpg", "real/cup/real_0.jpg"}
    assert tree(tmp_path) == {f"domain_net/{name}" for name in tree(folder)}


def test_a_list_of_duplicates_deletes_nothing_elsewhere(domain_net, tmp_path) -> None:
    precious = tmp_path / "precious.jpg"
    precious.write_bytes(b"mine")
    domain_net.files["domain_net_duplicates.txt"] = b"clipart/cup/clipart_1.jpg\n../../precious.jpg\n"
    with pytest.raises(InputError, match="line 2.*precious"):
        fetch("DomainNet", tmp_path / "root", domain_net)
    assert precious.exists()


def annotations(images: list[tuple[str, object, list[int]]]) -> bytes:
    """(file, place, animals) of each image -> annotations in the format of the data set's authors."""
    return json.dumps(
        {
            "categories": [{"id": 1, "name": "bird"}, {"id": 2, "name": "dog"}, {"id": 9, "name": "car"}],
            "images": [{"id": f"id-{f}", "file_name": f, "location": place} for f, place, _ in images],
            "annotations": [{"image_id": f"id-{f}", "category_id": c} for f, _, animals in images for c in animals],
        }
    ).encode()


@pytest.fixture
def terra(server, archive_of, picture):
    first = [("a.jpg", 38, [1]), ("b.jpg", "46", [2, 2]), ("c.jpg", 100, [1, 2])]
    second = [("d.jpg", 43, [9, 1]), ("e.jpg", 7, [1]), ("f.jpg", 38, [9])]
    notes = {"train_annotations.json": annotations(first), "trans_test_annotations.json": annotations(second)}
    server.files["eccv_18_annotations.tar.gz"] = archive_of(
        "tar.gz", {f"eccv_18_annotation_files/{name}": data for name, data in notes.items()}
    )
    server.files["eccv_18_all_images_sm.tar.gz"] = archive_of(
        "tar.gz", {f"eccv_18_all_images_sm/{f}.jpg": picture(i) for i, f in enumerate("abcdef")}
    )
    return server


def test_terra_incognita_is_sorted_by_place_and_animal(terra, tmp_path, tree) -> None:
    folder = fetch("TerraIncognita", tmp_path, terra)
    assert tree(folder) == {
        "location_38/bird/a.jpg",
        "location_46/dog/b.jpg",
        "location_100/bird/c.jpg",
        "location_100/dog/c.jpg",
        "location_43/bird/d.jpg",
    }
    assert tree(tmp_path) == {f"terra_incognita/{name}" for name in tree(folder)}


@pytest.mark.parametrize(
    ("notes", "message"),
    [
        (b"{", "train_annotations.json.*damaged"),
        (b'{"images": [{"id": 1}]}', "damaged"),
        (annotations([("../../x.jpg", 38, [1])]), "leads out of the folder"),
        (annotations([("none.jpg", 38, [1])]), "none.jpg, which is not among the images"),
    ],
)
def test_bad_annotations_are_told(terra, tmp_path, archive_of, notes, message) -> None:
    files = {"eccv_18_annotation_files/train_annotations.json": notes}
    terra.files["eccv_18_annotations.tar.gz"] = archive_of("tar.gz", files)
    with pytest.raises(InputError, match=message):
        fetch("TerraIncognita", tmp_path, terra)


def idx(shape: tuple[int, ...], data: bytes) -> bytes:
    head = bytes((0, 0, 8, len(shape))) + b"".join(n.to_bytes(4, "big") for n in shape)
    return gzip.compress(head + data)


@pytest.fixture
def mnist(server, monkeypatch):
    """A server with a tiny MNIST, and a table with its checksums."""
    for part, n in (("train", 5), ("t10k", 2)):
        server.files[f"{part}-images-idx3-ubyte.gz"] = idx((n, 28, 28), bytes(n * 28 * 28))
        server.files[f"{part}-labels-idx1-ubyte.gz"] = idx((n,), bytes(range(n)))
    facts = PUBLISHED["RotatedMNIST"]
    sources = tuple(replace(s, md5=hashlib.md5(server.files[s.file]).hexdigest()) for s in facts.sources)
    monkeypatch.setitem(PUBLISHED, "RotatedMNIST", replace(facts, sources=sources))
    return server


def test_mnist_is_checked_by_its_published_checksums(mnist, tmp_path, tree) -> None:
    folder = fetch("RotatedMNIST", tmp_path, mnist)
    assert tree(tmp_path) == {f"MNIST/raw/{s.file}" for s in PUBLISHED["RotatedMNIST"].sources}
    fetch("RotatedMNIST", tmp_path, mnist)
    assert len(mnist.requests) == 4
    assert folder == tmp_path / "MNIST"
    with pytest.raises(InputError, match="not the published"):
        fetch("ColoredMNIST", tmp_path / "other", mnist)  # its checksums are the real ones


def test_only_one_process_at_a_time(server, tmp_path) -> None:
    with retrieval.FileLock(tmp_path / ".PACS.lock"), pytest.raises(InputError, match="another process"):
        fetch("PACS", tmp_path, server)


def test_the_command_gets_and_counts(server, tmp_path, archive_of, pacs, capsys) -> None:
    server.files["PACS.zip"] = archive_of("zip", pacs)
    status = main(["data", "get", "PACS", "--root", str(tmp_path), "--url", f"{server.url}/", "--json"])
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert status == 2  # two images per class are fewer than published
    assert result["domains"]["photo"]["images"] == 14
    assert result["domains"]["photo"]["expected"] == 1670
    assert "photo: 14 images, 1,670 published" in result["problems"]
    assert "problems in" in printed.err


def test_a_file_cut_short_since_is_found(server, tmp_path, archive_of, pacs, capsys) -> None:
    """No checksum of PACS was published, so names and sizes are noted when it is unpacked."""
    server.files["PACS.zip"] = archive_of("zip", pacs)
    folder = fetch("PACS", tmp_path, server)
    told = "changed since itta data get"
    noted = verify(folder, "PACS", decode=False)
    assert noted.contents is not None
    assert noted.contents.files == len(pacs)
    assert not any(told in problem for problem in noted.problems)
    image = next(folder.rglob("*.jpg"))
    image.write_bytes(image.read_bytes()[:-1])
    assert any(told in problem for problem in verify(folder, "PACS", decode=False).problems)
