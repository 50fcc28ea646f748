"""Check data before training on them: count images, compare with the published counts, and read every image."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from itta.data.fingerprint import Contents, list_contents, read_contents
from itta.data.folder import files_by_class, no_domains
from itta.data.images import read_image
from itta.data.mnist import read_mnist
from itta.data.published import MNIST_NAMES, PUBLISHED, Published, find_published
from itta.data.suspicions import warn_about
from itta.errors import InputError
from itta.progress import ReportProgress, silent

_SIZE = 64  # pixels; a file that can be read at one size can be read at all sizes
_MNIST_COUNT = 70_000


@dataclass
class Verification:
    """The result of a check. `problems` is empty if all is well."""

    path: Path
    name: str | None
    counts: dict[str, dict[str, int]] = field(default_factory=dict)  # domain -> class -> images
    expected: Mapping[str, int] = field(default_factory=dict)  # domain -> images
    expected_classes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)  # file -> reason
    contents: Contents | None = None  # the number of files, and a digest of their names and sizes
    problems: list[str] = field(default_factory=list)

    def total(self, domain: str) -> int:
        return sum(self.counts.get(domain, {}).values())

    def to_json(self) -> dict[str, Any]:
        domains = {
            domain: {
                "images": self.total(domain),
                "expected": self.expected.get(domain),
                "classes": self.counts.get(domain, {}),
                "expected_classes": self.expected_classes.get(domain),
            }
            for domain in dict.fromkeys((*self.expected, *self.counts))
        }
        return {
            "path": str(self.path),
            "name": self.name,
            "domains": domains,
            "unreadable": self.unreadable,
            "contents": asdict(self.contents) if self.contents else None,
            "problems": self.problems,
            "ok": not self.problems,
        }


def verify(
    path: Path, name: str | None = None, *, decode: bool = True, report: ReportProgress = silent
) -> Verification:
    """Count the images of a folder root/domain/class/image or a manifest, compare, and read them if ``decode`` is set.

    Without a name, a folder with the name of a published data set counts as that data set.
    """
    facts = find_published(name) if name else _guess(path)
    if facts is not None and facts.name in MNIST_NAMES:
        return _check_mnist(path, facts)
    files = files_by_class(path)
    if not files:
        raise no_domains(path)
    found = Verification(path, facts.name if facts else None)
    found.counts = {d: {c: len(paths) for c, paths in by_class.items()} for d, by_class in files.items()}
    if facts:
        _compare(found, facts)
        _compare_contents(found)
    else:
        _look(found)
        warn_about(path, files)
    if decode:
        images = [image for by_class in files.values() for paths in by_class.values() for image in paths]
        for i, image in enumerate(images, start=1):
            try:
                read_image(image, _SIZE)
            except InputError as error:
                found.unreadable[str(image)] = str(error)
                found.problems.append(str(error))
            report("read images", i, len(images))
    return found


def _guess(path: Path) -> Published | None:
    name = path.resolve().name
    return next((p for p in PUBLISHED.values() if name in (p.folder, p.name)), None)


def _compare(found: Verification, facts: Published) -> None:
    totals = {domain: found.total(domain) for domain in found.counts}
    found.expected = next((counts for counts in facts.counts if counts == totals), facts.counts[0])
    found.expected_classes = facts.class_counts
    for domain, expected in found.expected.items():
        if domain not in found.counts:
            found.problems.append(f"domain {domain!r} is missing")
        elif totals[domain] != expected:
            found.problems.append(f"{domain}: {totals[domain]:,} images, {expected:,} published")
    found.problems += [f"{d!r} is not a domain of {facts.name}" for d in found.counts if d not in found.expected]
    for domain, by_class in facts.class_counts.items():
        for label, expected in by_class.items():
            have = found.counts.get(domain, {}).get(label, 0)
            if domain in found.counts and have != expected:
                found.problems.append(f"{domain}/{label}: {have:,} images, {expected:,} published")
    classes = {label for by_class in found.counts.values() for label in by_class}
    if len(classes) != facts.n_classes:
        found.problems.append(f"{len(classes)} classes, {facts.n_classes} published")
    strange = sorted(classes - set(facts.classes)) if facts.classes else []
    found.problems += [f"{label!r} is not a class of {facts.name}" for label in strange]


def _compare_contents(found: Verification) -> None:
    """Compare names and sizes with those at the time of itta data get: no checksum of the files was published."""
    if not found.path.is_dir():
        return
    found.contents, before = list_contents(found.path), read_contents(found.path.resolve())
    if before is not None and before != found.contents:
        found.problems.append(
            f"names or sizes of files changed since itta data get: {before.files:,} files then, "
            f"{found.contents.files:,} now"
        )


def _look(found: Verification) -> None:
    """Check the user's own data: every domain should have images of every class."""
    classes = sorted({label for by_class in found.counts.values() for label in by_class})
    for domain, by_class in found.counts.items():
        found.problems += [f"{domain}/{label}: no images" for label in classes if not by_class.get(label)]


def _check_mnist(path: Path, facts: Published) -> Verification:
    images, digits = read_mnist(path)
    found = Verification(path, facts.name)
    found.counts = {"MNIST": {str(digit): int((digits == digit).sum()) for digit in range(10)}}
    found.expected = {"MNIST": _MNIST_COUNT}
    if len(images) != _MNIST_COUNT:
        found.problems.append(f"{len(images):,} images, {_MNIST_COUNT:,} published")
    return found
