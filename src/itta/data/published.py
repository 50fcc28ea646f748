"""The data sets of DomainBed, as one table: their domains and classes, their addresses, and their folders.

Folders, addresses and the choice of domains and classes are DomainBed's (Gulrajani and Lopez-Paz, "In Search of Lost
Domain Generalization", ICLR 2021; github.com/facebookresearch/DomainBed). A file has no checksum here if neither its
authors nor DomainBed's publish one.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from itta.errors import InputError, unknown

_BU = "http://csr.bu.edu/ftp/visda/2019/multi-source"
_LILA = "https://storage.googleapis.com/public-datasets-lila/caltechcameratraps"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"


@dataclass(frozen=True)
class Source:
    """One file to download. `page` is an address for a browser, if `url` may refuse the download."""

    file: str
    url: str
    md5: str | None = None
    page: str | None = None


def drive(file: str, key: str) -> Source:
    """Return a file on Google Drive, which asks for confirmation before it sends a large file."""
    plain = f"https://drive.usercontent.google.com/download?id={key}&export=download&confirm=t"
    return Source(file, plain, page=f"https://drive.google.com/uc?id={key}")


@dataclass(frozen=True)
class Published:
    """A published data set."""

    name: str
    about: str
    paper: str
    folder: str  # below the root, as in DomainBed
    n_classes: int
    counts: tuple[Mapping[str, int], ...]  # domain -> images; several if several versions are in use
    counts_from: str
    sources: tuple[Source, ...]
    classes: tuple[str, ...] = ()  # empty if the names are not published
    class_counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # domain -> class -> images
    inside: str = ""  # the folder within the archive that becomes `folder`

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(self.counts[0])

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "about": self.about,
            "paper": self.paper,
            "folder": self.folder,
            "domains": list(self.domains),
            "n_classes": self.n_classes,
            "classes": list(self.classes),
            "counts": [dict(counts) for counts in self.counts],
            "counts_from": self.counts_from,
            "class_counts": {domain: dict(counts) for domain, counts in self.class_counts.items()},
            "sources": [
                {"file": s.file, "url": s.url, "page": s.page, "md5": s.md5 or "none published"} for s in self.sources
            ],
        }


_PACS_CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
_MNIST_SOURCES = tuple(
    Source(file, f"{_MNIST}/{file}", md5)  # checksums: torchvision.datasets.MNIST
    for file, md5 in (
        ("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        ("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
        ("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
        ("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
    )
)

PUBLISHED: dict[str, Published] = {
    p.name: p
    for p in (
        Published(
            name="PACS",
            about="objects in photos, paintings, cartoons and sketches",
            paper="Li et al., Deeper, Broader and Artier Domain Generalization, ICCV 2017",
            folder="PACS",
            n_classes=7,
            classes=_PACS_CLASSES,
            counts=({"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929},),
            counts_from="the paper; the counts by class were counted in the data",
            class_counts={
                "art_painting": dict(zip(_PACS_CLASSES, (379, 255, 285, 184, 201, 295, 449))),
                "cartoon": dict(zip(_PACS_CLASSES, (389, 457, 346, 135, 324, 288, 405))),
                "photo": dict(zip(_PACS_CLASSES, (189, 202, 182, 186, 199, 280, 432))),
                "sketch": dict(zip(_PACS_CLASSES, (772, 740, 753, 608, 816, 80, 160))),
            },
            sources=(drive("PACS.zip", "1JFr8f805nMUelQWWmfnJR3y4_SYoN5Pd"),),
            inside="kfold",
        ),
        Published(
            name="VLCS",
            about="objects in the photos of four older data sets",
            paper="Fang et al., Unbiased Metric Learning, ICCV 2013",
            folder="VLCS",
            n_classes=5,
            classes=("bird", "car", "chair", "dog", "person"),
            counts=({"Caltech101": 1415, "LabelMe": 2656, "SUN09": 3282, "VOC2007": 3376},),
            counts_from="adding up to the 10,729 of DomainBed's paper; none published by class",
            sources=(drive("VLCS.tar.gz", "1skwblH1_okBwxWxmRsp9_qi15hyPpxg8"),),
            inside="VLCS",
        ),
        Published(
            name="OfficeHome",
            about="objects of office and home in art, clip art, product pictures and photos",
            paper="Venkateswara et al., Deep Hashing Network for Unsupervised Domain Adaptation, CVPR 2017",
            folder="office_home",
            n_classes=65,
            counts=({"Art": 2427, "Clipart": 4365, "Product": 4439, "Real World": 4357},),
            counts_from="adding up to the 15,588 of DomainBed's paper; none published by class",
            sources=(drive("office_home.zip", "1uY0pj7oFsjMxRwaD3Sxy0jgel0fsYXLC"),),
            inside="OfficeHomeDataset_10072016",
        ),
        Published(
            name="TerraIncognita",
            about="animals in photos of camera traps at four places",
            paper="Beery et al., Recognition in Terra Incognita, ECCV 2018",
            folder="terra_incognita",
            n_classes=10,
            classes=(
                "bird", "bobcat", "cat", "coyote", "dog", "empty", "opossum", "rabbit", "raccoon", "squirrel",
            ),
            counts=(
                {"location_100": 4879, "location_38": 9767, "location_43": 4020, "location_46": 6122},
                {"location_100": 4741, "location_38": 9736, "location_43": 3970, "location_46": 5883},
            ),
            counts_from="24,788 images in DomainBed's paper (by place: github.com/khanrc/miro, issue 9); "
            "24,330 with the annotations of 2021; none published by class",
            sources=(
                Source("eccv_18_annotations.tar.gz", f"{_LILA}/eccv_18_annotations.tar.gz"),
                Source("eccv_18_all_images_sm.tar.gz", f"{_LILA}/eccv_18_all_images_sm.tar.gz"),
            ),
        ),
        Published(
            name="DomainNet",
            about="345 kinds of objects in six styles",
            paper="Peng et al., Moment Matching for Multi-Source Domain Adaptation, ICCV 2019",
            folder="domain_net",
            n_classes=345,
            counts=(
                {
                    "clipart": 48129,
                    "infograph": 51605,
                    "painting": 72266,
                    "quickdraw": 172500,
                    "real": 172947,
                    "sketch": 69128,
                },
            ),
            counts_from="the authors' cleaned lists (TensorFlow Datasets' catalogue counts them), adding up to the "
            "586,575 of DomainBed's paper; none published by class",
            sources=(
                Source("clipart.zip", f"{_BU}/groundtruth/clipart.zip"),
                Source("infograph.zip", f"{_BU}/infograph.zip"),
                Source("painting.zip", f"{_BU}/groundtruth/painting.zip"),
                Source("quickdraw.zip", f"{_BU}/quickdraw.zip"),
                Source("real.zip", f"{_BU}/real.zip"),
                Source("sketch.zip", f"{_BU}/sketch.zip"),
                Source(
                    "domain_net_duplicates.txt",
                    "https://raw.githubusercontent.com/facebookresearch/DomainBed/main/domainbed/misc/"
                    "domain_net_duplicates.txt",
                ),
            ),
        ),
        Published(
            name="RotatedMNIST",
            about="handwritten digits, rotated by 0 to 75 degrees",
            paper="Ghifary et al., Domain Generalization for Object Recognition, ICCV 2015; LeCun et al., 1998",
            folder="MNIST",
            n_classes=10,
            classes=tuple("0123456789"),
            counts=({"0": 11667, "15": 11667, "30": 11667, "45": 11667, "60": 11666, "75": 11666},),
            counts_from="every sixth of MNIST's 70,000 images, as DomainBed deals them out",
            sources=_MNIST_SOURCES,
        ),
        Published(
            name="ColoredMNIST",
            about="handwritten digits, below five or not, in a colour that mostly agrees with a noisy label",
            paper="Arjovsky et al., Invariant Risk Minimization, 2019; LeCun et al., 1998",
            folder="MNIST",
            n_classes=2,
            classes=("5-9", "0-4"),
            counts=({"+90%": 23334, "+80%": 23333, "-90%": 23333},),
            counts_from="every third of MNIST's 70,000 images, as DomainBed deals them out",
            sources=_MNIST_SOURCES,
        ),
    )
}  # fmt: skip
MNIST_NAMES = ("RotatedMNIST", "ColoredMNIST")


def find_published(name: str) -> Published:
    """Return a data set by its name, in upper or lower case."""
    for known in PUBLISHED.values():
        if known.name.lower() == name.lower():
            return known
    raise unknown("data set", name, tuple(PUBLISHED))


def locate(name_or_path: str | Path, root: str | Path | None = None) -> Path:
    """Return the folder of a published data set below the root, or a path unchanged.

    Without ``root``, a folder of that name in the current directory comes first, then the root in ITTA_DATA.
    """
    text = str(name_or_path)
    if text not in PUBLISHED or (root is None and Path(text).exists()):
        return Path(name_or_path)
    root = root or os.environ.get("ITTA_DATA")
    if not root:
        raise InputError(
            f"the folder of the data set {text} is not known: name the root with --data-root DIR or ITTA_DATA=DIR. "
            f"Download the data with itta data get {text} --root DIR."
        )
    folder = Path(root) / PUBLISHED[text].folder
    if not folder.is_dir():
        raise InputError(f"there is no {folder}: download the data with itta data get {text} --root {root}.")
    return folder
