"""Archives made to do harm, or cut short by a download."""

import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from itta.data.archives import Limits, unpack
from itta.errors import InputError

KINDS = ("zip", "tar", "tar.gz")
FILES = {"top/a/1.txt": b"one", "top/b/2.txt": b"two" * 1000, "empty.txt": b""}


@pytest.fixture
def make(tmp_path, archive_of):
    """(kind, files) -> the path of an archive."""

    def write(kind: str, files: dict[str, bytes]) -> Path:
        path = tmp_path / f"archive.{kind}"
        path.write_bytes(archive_of(kind, files))
        return path

    return write


@pytest.mark.parametrize("kind", KINDS)
def test_files_come_out_as_they_went_in(make, tmp_path, kind, tree) -> None:
    told: list[tuple[str, int, int]] = []
    archive = make(kind, FILES)
    unpack(archive, tmp_path / "out", report=lambda *args: told.append(args))
    assert {name: (tmp_path / "out" / name).read_bytes() for name in tree(tmp_path / "out")} == FILES
    assert {name for name, _, _ in told} == {f"unpack {archive.name}"}
    assert all(0 < done <= total == archive.stat().st_size for _, done, total in told)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["../evil.txt", "/evil.txt", "top/../../evil.txt", "c:/evil.txt", "..\\evil.txt", "a/..", "/"]
)
def test_paths_that_lead_elsewhere_are_refused(make, tmp_path, kind, name) -> None:
    archive = make(kind, {"good.txt": b"good", name: b"evil"})
    if name == "/" and kind == "zip":
        return  # a folder, in a zip
    with pytest.raises(InputError, match="leads out of the folder.*right file"):
        unpack(archive, tmp_path / "in" / "out")
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and p.read_bytes() == b"evil"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_in_a_tar_are_refused(tmp_path, kind) -> None:
    path = tmp_path / "archive.tar"
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("link")
        member.type, member.linkname = kind, str(tmp_path)
        archive.addfile(member)
        through = tarfile.TarInfo("link/evil.txt")
        through.size = 4
        archive.addfile(through, io.BytesIO(b"evil"))
    with pytest.raises(InputError, match="'link' is a link or a device"):
        unpack(path, tmp_path / "out")
    assert not (tmp_path / "evil.txt").exists()
    assert not (tmp_path / "out" / "link").is_symlink()


def test_a_path_through_a_link_on_disk_is_refused(make, tmp_path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "link").symlink_to(tmp_path)
    with pytest.raises(InputError, match=r"'link/evil\.txt' is a link or a device, or leads through a link"):
        unpack(make("tar", {"link/evil.txt": b"evil"}), tmp_path / "out")
    assert not (tmp_path / "evil.txt").exists()


def test_a_link_in_a_zip_is_refused(tmp_path) -> None:
    path = tmp_path / "archive.zip"
    with zipfile.ZipFile(path, "w") as archive:
        member = zipfile.ZipInfo("link")
        member.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(member, str(tmp_path))
        archive.writestr("link/evil.txt", "evil")
    with pytest.raises(InputError, match="'link' is a link or a device"):
        unpack(path, tmp_path / "out")
    assert not (tmp_path / "evil.txt").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_too_many_files(make, tmp_path, kind) -> None:
    with pytest.raises(InputError, match="more than 2 files"):
        unpack(make(kind, FILES), tmp_path / "out", Limits(files=2))
    unpack(make(kind, FILES), tmp_path / "out", Limits(files=3))


@pytest.mark.parametrize("kind", KINDS)
def test_too_many_bytes(make, tmp_path, kind) -> None:
    total = sum(map(len, FILES.values()))
    with pytest.raises(InputError, match="GB unpacked"):
        unpack(make(kind, FILES), tmp_path / "out", Limits(bytes=total - 1))
    unpack(make(kind, FILES), tmp_path / "out", Limits(bytes=total))


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_a_bomb_is_stopped_by_its_ratio(make, tmp_path, kind) -> None:
    bomb = make(kind, {"zeros": bytes(20_000_000)})
    assert bomb.stat().st_size < 30_000
    with pytest.raises(InputError, match="more than 100 times its size"):
        unpack(bomb, tmp_path / "out")
    assert (tmp_path / "out" / "zeros").stat().st_size <= 10_300_000


def test_a_zip_that_lies_about_sizes_is_refused(make, tmp_path) -> None:
    path = make("zip", {"zeros": bytes(1000)})
    data = path.read_bytes()
    path.write_bytes(data.replace((1000).to_bytes(4, "little"), (10).to_bytes(4, "little")))
    with pytest.raises(InputError, match="damaged"):
        unpack(path, tmp_path / "out")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keep", [0.0, 0.3, 0.7])
def test_an_archive_cut_short_is_damaged(make, tmp_path, kind, keep) -> None:
    path = make(kind, {"a.bin": bytes(range(256)) * 400})
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    with pytest.raises(InputError, match="cut short.*download it again"):
        unpack(path, tmp_path / "out")


def test_flipped_bytes_in_a_zip_are_seen(make, tmp_path) -> None:
    path = make("zip", {"a.bin": bytes(range(256)) * 400})
    data = bytearray(path.read_bytes())
    data[60] ^= 255
    path.write_bytes(data)
    with pytest.raises(InputError, match="damaged or cut short"):
        unpack(path, tmp_path / "out")


def test_something_else_is_no_archive(tmp_path) -> None:
    (tmp_path / "page.zip").write_text("<html>" * 1000)
    with pytest.raises(InputError, match="neither a zip nor a tar"):
        unpack(tmp_path / "page.zip", tmp_path / "out")


def test_an_encrypted_zip_is_told(make, tmp_path) -> None:
    path = make("zip", {"a.txt": b"secret"})
    data = bytearray(path.read_bytes())
    data[6] |= 1  # the flag in the local header
    data[data.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match="encrypted"):
        unpack(path, tmp_path / "out")


@pytest.mark.parametrize("kind", ["gz", "xz", "bz2"])
def test_a_flipped_bit_in_a_packed_tar_is_found(tmp_path, kind) -> None:
    """Wherever it is: the checksum at the end of the stream is read, also behind the last member."""
    path, data = tmp_path / f"a.tar.{kind}", bytes(range(256)) * 40
    with tarfile.open(path, f"w:{kind}") as archive:
        for i in range(3):
            member = tarfile.TarInfo(f"a/{i}.bin")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    unpack(path, tmp_path / "good")
    whole = path.read_bytes()
    for place in [*range(20, len(whole) - 8, max(1, len(whole) // 40)), len(whole) - 6]:
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="cut short.*download it again"):
            unpack(path, tmp_path / "out")


def test_a_file_and_a_folder_of_one_name_are_refused(make, tmp_path) -> None:
    with pytest.raises(InputError, match="cannot be a file"):
        unpack(make("tar", {"a": b"file", "a/b": b"inside"}), tmp_path / "out")
