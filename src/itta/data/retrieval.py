"""Get a published data set: download its files, unpack them, and arrange them in folders as DomainBed does."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from itta.data.archives import checked_path, unpack
from itta.data.download import PATIENCE, Patience, download
from itta.data.fingerprint import write_contents
from itta.data.mnist import RAW, read_mnist
from itta.data.published import MNIST_NAMES, Published, Source, find_published
from itta.errors import InputError
from itta.progress import ReportProgress, silent

DOWNLOADS = ".downloads"


def retrieve(
    name: str,
    root: Path,
    *,
    url: str | None = None,
    report: ReportProgress = silent,
    patience: Patience = PATIENCE,
) -> Path:
    """Put a data set into a folder below the root, and return the folder. An existing folder does not change.

    ``url`` is a folder on the web with the same files. A file that the user has put into the root is used instead of a
    download, and never deleted. The folder appears when the data set is complete.
    """
    facts = find_published(name)
    target = root / facts.folder
    root.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(root / f".{facts.folder}.lock", timeout=0):
            if facts.name in MNIST_NAMES:
                _get_mnist(facts, root, url, report, patience)
            elif not target.exists():
                files = {s.file: _file(s, root, url, report, patience) for s in facts.sources}
                _lay_out(facts, root, files, report)
    except Timeout:
        raise InputError(
            f"another process is downloading {facts.name} into {root}: wait until it has finished."
        ) from None
    return target


def _file(source: Source, root: Path, url: str | None, report: ReportProgress, patience: Patience) -> Path:
    """Return the path of a file: put there by hand, downloaded before, or downloaded now."""
    by_hand, fetched = root / source.file, root / DOWNLOADS / source.file
    if by_hand.is_file():
        return by_hand
    if not fetched.is_file():
        fetched.parent.mkdir(exist_ok=True)
        address = f"{url.rstrip('/')}/{source.file}" if url else source.url
        try:
            download(address, fetched, md5=source.md5, report=report, patience=patience)
        except InputError as error:
            page = source.page or source.url
            raise InputError(
                f"{error} Or download {page} in a browser, save it as {by_hand}, and run the same command again."
            ) from error
    return fetched


def _get_mnist(facts: Published, root: Path, url: str | None, report: ReportProgress, patience: Patience) -> None:
    raw = root / facts.folder / RAW
    raw.mkdir(parents=True, exist_ok=True)
    for source in facts.sources:
        plain = raw / source.file.removesuffix(".gz")
        if not (raw / source.file).is_file() and not plain.is_file():
            found = _file(source, root, url, report, patience)
            shutil.copyfile(found, raw / f"{source.file}.tmp")
            os.replace(raw / f"{source.file}.tmp", raw / source.file)
    read_mnist(root / facts.folder)
    _clear_downloads(facts, root)


def _lay_out(facts: Published, root: Path, files: dict[str, Path], report: ReportProgress) -> None:
    stage = root / f".{facts.folder}.partial"
    shutil.rmtree(stage, ignore_errors=True)
    try:
        for file in files.values():
            if file.suffix != ".txt":
                unpack(file, stage, report=report)
        arrange = {"TerraIncognita": _arrange_terra, "DomainNet": _arrange_domain_net}.get(facts.name, _arrange)
        folder = arrange(facts, stage, files)
        missing = [domain for domain in facts.domains if not (folder / domain).is_dir()]
        if missing:
            raise InputError(
                f"{', '.join(map(str, files.values()))}: expected a folder {missing[0]!r} inside, as {facts.name} has. "
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
    """Delete the duplicates that DomainBed lists."""
    listed = files["domain_net_duplicates.txt"]
    for line, name in enumerate(listed.read_text(encoding="utf-8").splitlines(), start=1):
        if name.strip():
            (stage / checked_path(name.strip(), f"{listed}, line {line}")).unlink(missing_ok=True)
    return stage


def _arrange_terra(facts: Published, stage: Path, files: dict[str, Path]) -> Path:
    """Sort the images of the camera traps by place and animal. An image of two animals goes to both folders."""
    images: list[Any] = []
    animals: dict[Any, str] = {}
    seen: dict[Any, set[str]] = {}
    annotations = sorted(stage.glob("eccv_18_annotation_files/*.json"))
    if not annotations:
        raise InputError(
            f"{files['eccv_18_annotations.tar.gz']}: expected annotations inside, found none. Is it the right file?"
        )
    for path in annotations:
        try:
            part = json.loads(path.read_text(encoding="utf-8"))
            images += [(image["id"], image["file_name"], str(image["location"])) for image in part["images"]]
            animals |= {category["id"]: category["name"] for category in part["categories"]}
            for note in part["annotations"]:
                seen.setdefault(note["image_id"], set()).add(animals[note["category_id"]])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path.name} of the annotations is damaged ({error!r}): download the file again."
            ) from error
    for key, name, place in images:
        for animal in seen.get(key, set()) & set(facts.classes):
            if f"location_{place}" in facts.domains:
                source = stage / "eccv_18_all_images_sm" / checked_path(name, "the annotations")
                _place(source, stage / facts.folder / f"location_{place}" / animal / source.name)
    return stage / facts.folder


def _place(source: Path, target: Path) -> None:
    if not source.is_file():
        raise InputError(
            f"the annotations name {source.name}, which is not among the images: download the files again."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        target.hardlink_to(source)
    except FileExistsError:
        return
    except OSError:  # the file system has no links
        shutil.copyfile(source, target)
