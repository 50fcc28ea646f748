"""Get a published data set: fetch its files, unpack them, and lay them out as DomainBed does."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from itta.data.archives import checked_path, unpack
from itta.data.download import download
from itta.data.fingerprint import write_contents
from itta.data.mnist import RAW, read_mnist
from itta.data.published import MNIST_NAMES, Published, Source, find_published
from itta.errors import InputError

Report = Callable[[str, int, int], None]
DOWNLOADS = ".downloads"


def get(
    name: str,
    root: Path,
    *,
    url: str | None = None,
    report: Report = lambda what, done, total: None,
    attempts: int = 5,
    pause: float = 1.0,
) -> Path:
    """Bring a data set below the root and return its folder; one that is there already is left as it is.

    `url` is a folder on the web that holds the same files. A file that the user has put into the root is taken instead
    of a download, and never deleted. A data set appears in its place when it is complete.
    """
    facts = find_published(name)
    target = root / facts.folder
    root.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(root / f".{facts.folder}.lock", timeout=0):
            if facts.name in MNIST_NAMES:
                _get_mnist(facts, root, url, report, attempts, pause)
            elif not target.exists():
                files = {s.file: _file(s, root, url, report, attempts, pause) for s in facts.sources}
                _lay_out(facts, root, files, report)
    except Timeout:
        raise InputError(f"another process is getting {facts.name} into {root}: wait for it.") from None
    return target


def _file(source: Source, root: Path, url: str | None, report: Report, attempts: int, pause: float) -> Path:
    """The path of a file: put there by hand, fetched before, or fetched now."""
    by_hand, fetched = root / source.file, root / DOWNLOADS / source.file
    if by_hand.is_file():
        return by_hand
    if not fetched.is_file():
        fetched.parent.mkdir(exist_ok=True)
        address = f"{url.rstrip('/')}/{source.file}" if url else source.url
        try:
            download(
                address,
                fetched,
                md5=source.md5,
                report=lambda done, total: report(source.file, done, total),
                attempts=attempts,
                pause=pause,
            )
        except InputError as error:
            page = source.page or source.url
            raise InputError(
                f"{error} By hand: get {page} with a browser, save it as {by_hand}, and run the same command again."
            ) from error
    return fetched


def _get_mnist(facts: Published, root: Path, url: str | None, report: Report, attempts: int, pause: float) -> None:
    raw = root / facts.folder / RAW
    raw.mkdir(parents=True, exist_ok=True)
    for source in facts.sources:
        plain = raw / source.file.removesuffix(".gz")
        if not (raw / source.file).is_file() and not plain.is_file():
            found = _file(source, root, url, report, attempts, pause)
            shutil.copyfile(found, raw / f"{source.file}.tmp")
            os.replace(raw / f"{source.file}.tmp", raw / source.file)
    read_mnist(root / facts.folder)
    _clear_downloads(facts, root)


def _lay_out(facts: Published, root: Path, files: dict[str, Path], report: Report) -> None:
    stage = root / f".{facts.folder}.partial"
    shutil.rmtree(stage, ignore_errors=True)
    try:
        for name, file in files.items():
            if file.suffix != ".txt":
                unpack(file, stage, report=lambda done, total, name=name: report(f"unpack {name}", done, total))  # type: ignore[misc]
        arrange = {"TerraIncognita": _arrange_terra, "DomainNet": _arrange_domain_net}.get(facts.name, _arrange)
        folder = arrange(facts, stage, files)
        missing = [domain for domain in facts.domains if not (folder / domain).is_dir()]
        if missing:
            raise InputError(
                f"{', '.join(map(str, files.values()))}: no folder {missing[0]!r} inside, which {facts.name} has. "
                "Is it the right file?"
            )
        os.replace(folder, root / facts.folder)
        write_contents(root / facts.folder)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    _clear_downloads(facts, root)


def _clear_downloads(facts: Published, root: Path) -> None:
    for source in facts.sources:
        (root / DOWNLOADS / source.file).unlink(missing_ok=True)
    if (root / DOWNLOADS).is_dir() and not any((root / DOWNLOADS).iterdir()):
        (root / DOWNLOADS).rmdir()


def _arrange(facts: Published, stage: Path, files: dict[str, Path]) -> Path:
    return stage / facts.inside


def _arrange_domain_net(facts: Published, stage: Path, files: dict[str, Path]) -> Path:
    """Take out the duplicates that DomainBed lists."""
    listed = files["domain_net_duplicates.txt"]
    for line, name in enumerate(listed.read_text(encoding="utf-8").splitlines(), start=1):
        if name.strip():
            (stage / checked_path(name.strip(), f"{listed}, line {line}")).unlink(missing_ok=True)
    return stage


def _arrange_terra(facts: Published, stage: Path, files: dict[str, Path]) -> Path:
    """Sort the camera traps' images by place and animal; one with two animals goes to both."""
    images: list[Any] = []
    animals: dict[Any, str] = {}
    seen: dict[Any, set[str]] = {}
    annotations = sorted(stage.glob("eccv_18_annotation_files/*.json"))
    if not annotations:
        raise InputError(f"{files['eccv_18_annotations.tar.gz']}: no annotations inside. Is it the right file?")
    for path in annotations:
        try:
            part = json.loads(path.read_text(encoding="utf-8"))
            images += [(image["id"], image["file_name"], str(image["location"])) for image in part["images"]]
            animals |= {category["id"]: category["name"] for category in part["categories"]}
            for note in part["annotations"]:
                seen.setdefault(note["image_id"], set()).add(animals[note["category_id"]])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path.name} of the annotations is damaged ({error!r}): get the file again.") from error
    for key, name, place in images:
        for animal in seen.get(key, set()) & set(facts.classes):
            if f"location_{place}" in facts.domains:
                source = stage / "eccv_18_all_images_sm" / checked_path(name, "the annotations")
                _place(source, stage / facts.folder / f"location_{place}" / animal / source.name)
    return stage / facts.folder


def _place(source: Path, target: Path) -> None:
    if not source.is_file():
        raise InputError(f"the annotations name {source.name}, which is not among the images: get the files again.")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        target.hardlink_to(source)
    except FileExistsError:
        return
    except OSError:  # a file system without links
        shutil.copyfile(source, target)
