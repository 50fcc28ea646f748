"""Images in folders or manifests: root/domain/class/image to train on, root/class/image or root/image as a target."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from itta.data.dataset import DomainDataset, Images
from itta.data.folder_images import FolderImages
from itta.data.images import IMAGE_SUFFIXES
from itta.data.manifest import is_manifest, read_manifest
from itta.data.path_list import PathList
from itta.data.suspicions import warn_about
from itta.errors import InputError, unknown
from itta.files import leads_back, walk_folders
from itta.schema import MAX_NAME
from itta.text import readable


def load_folder(
    root: str | Path,
    *,
    image_size: int,
    domains: Sequence[str] | None = None,
    allow_missing_classes: bool = False,
    cache: bool = True,
) -> DomainDataset:
    """Load root/domain/class/image, or a manifest of images, in the order of torchvision's ImageFolder.

    DomainBed reads folders with ImageFolder, so its splits come out the same. There are three differences: files and
    folders with a leading dot are left out here, GIF files are read, and all domains share one list of classes.
    """
    root = Path(root)
    found = files_by_class(root)
    if not found:
        raise no_domains(root)
    for name in domains or ():
        if name not in found:
            raise unknown("domain", name, tuple(found))
    files = {name: by_class for name, by_class in found.items() if domains is None or name in domains}
    classes = tuple(sorted({label for by_class in files.values() for label in by_class}))
    _check_names((*files, *classes))
    warn_about(root, files)
    for name, by_class in files.items():
        _check_domain(root, name, by_class, classes, allow_missing_classes)
    return DomainDataset(
        name=root.resolve().stem if is_manifest(root) else root.resolve().name,
        classes=classes,
        domains={
            name: _labelled(by_class, classes, image_size, str(root / name) if cache else None)
            for name, by_class in files.items()
        },
        image_size=image_size,
    )


def _check_names(names: Sequence[str]) -> None:
    """Refuse names of domains and classes that a model or a record could not hold."""
    for name in names:
        if len(name) > MAX_NAME:
            raise InputError(
                f"the name {name[:40]!r}… has {len(name):,} characters, and {MAX_NAME:,} are allowed: shorten it."
            )
        if readable(name) != name:
            raise InputError(f"the name of the folder {readable(name)!r} is not UTF-8: rename the folder.")


def files_by_class(root: Path) -> dict[str, dict[str, list[Path]]]:
    """Return domain -> class -> files of a folder or a manifest."""
    if is_manifest(root):
        return _listed(root)
    return {name: _by_class(folder) for name, folder in _subfolders(root).items()}


def load_target(
    root: str | Path, classes: Sequence[str], *, image_size: int, domain: str | None = None, cache: bool = True
) -> Images:
    """Load a target: root/class/image with labels, or root/image (or one file) without labels, all -1.

    With ``domain``: root/domain/class/image or root/domain/image. From a manifest: one domain, or all that it lists.
    """
    root = Path(root)
    if is_manifest(root):
        return _listed_target(root, classes, image_size, domain, cache)
    root = root / domain if domain else root
    origin = str(root) if cache and root.is_dir() else None
    if root.is_file() or not _subfolders(root):
        paths = PathList(find_images([root]))
        return FolderImages(paths, np.full(len(paths), -1), image_size, origin, once=True)
    folders = _subfolders(root)
    for name in folders:
        if name not in classes:
            error = unknown(f"class folder in {root}:", name, tuple(classes))
            raise InputError(f"{error} Put images without labels directly into {root}.")
    if any(_is_image(path) for path in root.iterdir()):
        raise InputError(
            f"{root} holds both images and class folders: move the images into class folders or elsewhere."
        )
    paths, ends = PathList(), []
    for folder in folders.values():
        paths.extend(_by_folder(folder))
        ends.append(len(paths))
    if not paths:
        raise InputError(f"no images in {root}: expected {root}/class/image with {_suffixes()}.")
    labels = np.repeat([classes.index(name) for name in folders], np.diff([0, *ends]))
    return FolderImages(paths, labels, image_size, origin, once=True)


def list_images(paths: Sequence[str | Path]) -> list[Path]:
    """Return the image files in paths, folders and manifests, each once, in order. In a folder 2 comes before 10."""
    return list(map(Path, find_images(paths)))


def find_images(paths: Sequence[str | Path]) -> Iterator[str]:
    """Yield the files of `list_images` one by one; only the names of one folder are in memory at a time.

    They are text, because a `Path` takes longer to make and leaves its name in a table of the interpreter.
    """
    found = _find(paths)
    return found if len(paths) == 1 and not is_manifest(Path(paths[0])) else iter(dict.fromkeys(found))


def _find(paths: Sequence[str | Path]) -> Iterator[str]:
    for path in map(Path, paths):
        if path.is_dir():
            inside = _in_order(path)
            first = next(inside, None)
            if first is None:
                raise InputError(f"no images in {path}: expected files with {_suffixes()}.")
            yield first
            yield from inside
        elif not path.exists():
            raise InputError(f"there is no file or folder {path}: check the path.")
        elif is_manifest(path):
            yield from (str(entry.path) for entry in read_manifest(path))
        elif path.suffix.lower() not in IMAGE_SUFFIXES:
            raise InputError(
                f"{path} is not an image file: expected {_suffixes()}, a folder of such files, or a manifest of them."
            )
        else:
            yield str(path)


def no_domains(root: Path) -> InputError:
    """Return the error of a folder without domains."""
    return InputError(f"no domain folders in {root}: expected images at {root}/domain/class/image.")


def _labelled(
    by_class: dict[str, list[Path]], classes: Sequence[str], image_size: int, origin: str | None
) -> FolderImages:
    paths = [path for paths in by_class.values() for path in paths]
    labels = [classes.index(name) for name, paths in by_class.items() for _ in paths]
    return FolderImages(paths, labels, image_size, origin)


def _listed(manifest: Path) -> dict[str, dict[str, list[Path]]]:
    """Return domain -> class -> files of a manifest, in the order of folders with these names."""
    found: dict[str, dict[str, list[Path]]] = {}
    entries = read_manifest(manifest)
    for entry in sorted(entries, key=lambda entry: (entry.domain, entry.label, *_by_parent(entry.path))):
        if not entry.label:
            raise InputError(
                f"{manifest}, line {entry.line}: no class, and training needs one for every image: add it."
            )
        found.setdefault(entry.domain, {}).setdefault(entry.label, []).append(entry.path)
    return found


def _listed_target(
    manifest: Path, classes: Sequence[str], image_size: int, domain: str | None, cache: bool
) -> FolderImages:
    entries = read_manifest(manifest)
    domains = tuple(dict.fromkeys(entry.domain for entry in entries))
    if domain is not None and domain not in domains:
        raise unknown("domain", domain, domains)
    entries = [entry for entry in entries if domain in (None, entry.domain)]
    for entry in entries:
        if entry.label and entry.label not in classes:
            raise InputError(f"{manifest}, line {entry.line}: {unknown('class', entry.label, tuple(classes))}")
        if bool(entry.label) != bool(entries[0].label):
            raise InputError(
                f"{manifest}, lines {entries[0].line} and {entry.line}: only one has a class: give all of them one, "
                "or none."
            )
    labels = [classes.index(entry.label) if entry.label else -1 for entry in entries]
    origin = f"{manifest}/{domain or ''}*" if cache else None  # sorted by line, unlike a training domain of this name
    return FolderImages([entry.path for entry in entries], labels, image_size, origin, once=True)


def _check_domain(
    root: Path, name: str, by_class: dict[str, list[Path]], classes: Sequence[str], allow_missing: bool
) -> None:
    folder = root / name
    if not any(by_class.values()):
        raise InputError(
            f"no images in domain {name!r}: expected {folder}/class/image with {_suffixes()}. "
            "Delete the folder, or name the domains to use."
        )
    missing = [name for name in classes if not by_class.get(name)]
    if missing and not allow_missing:
        where = root if is_manifest(root) else folder / missing[0]
        raise InputError(
            f"domain {name!r} has no images of class {', '.join(map(repr, missing))} in {where}. Add some, or allow it "
            "with allow_missing_classes=True or --allow-missing-classes."
        )


def _subfolders(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}: check the path.")
    _check_readable(folder)
    return {path.name: path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(".")}


def _check_readable(folder: Path) -> None:
    try:
        next(folder.iterdir(), None)
    except OSError as error:
        raise InputError(
            f"cannot read the folder {folder} ({error.strerror}): change its permissions, or move it away."
        ) from error


def _by_class(folder: Path) -> dict[str, list[Path]]:
    return {name: list(map(Path, _by_folder(path))) for name, path in _subfolders(folder).items()}


def _by_parent(path: Path) -> tuple[str, str]:
    """Sort key of ImageFolder: the path of the folder as text, then the name. Files come before those of subfolders."""
    return str(path.parent), path.name


def _by_folder(folder: Path) -> Iterator[str]:
    """Yield the images below a folder in the order of `_by_parent`; the names of one folder are in memory at a time."""
    for parent in sorted(parent for parent, _ in walk_folders(folder, follow=True)):
        with os.scandir(parent) as entries:
            names = sorted(entry.name for entry in entries if _is_image(entry))
        yield from (os.path.join(parent, name) for name in names)


def _is_image(file: Path | os.DirEntry[str]) -> bool:
    name = file.name
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES and not name.startswith(".") and file.is_file()


def _in_order(folder: Path) -> Iterator[str]:
    """Yield the images below a folder in the order of `_natural`, folder by folder."""
    _check_readable(folder)
    with os.scandir(folder) as entries:  # a slash behind folders: so their files have the place of the whole path
        found = [
            f"{e.name}/" if e.is_dir() else e.name for e in entries if e.name[0] != "." and (e.is_dir() or _is_image(e))
        ]
    found.sort(key=_natural)
    start = os.path.join(folder, "") if str(folder) != "." else ""
    for name in found:
        if not name.endswith("/"):
            yield start + name
        elif not leads_back(folder / name):
            yield from _in_order(folder / name)


def _natural(name: str) -> tuple[str, str]:
    """Sort key by which 2 comes before 10: a number's length stands before it. Numbers come before other characters."""
    return re.sub(r"\d+", lambda found: f"\0{len(str(int(found[0]))):03}{int(found[0])}", name.casefold()), name


def _suffixes() -> str:
    return ", ".join(IMAGE_SUFFIXES)
