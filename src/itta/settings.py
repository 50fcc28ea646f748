"""Settings that several verbs share: how to train, where images lie, how a target arrives, what is done at test time.

Each is a frozen dataclass. The command line turns the fields into flags; the comment of a field is its help text.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import product
from pathlib import Path, PurePath
from typing import Any, Literal

from itta.errors import InputError
from itta.hparams import Regime
from itta.schema import MAX_IMAGE_SIZE, MAX_INTEGER

SMALL_IMAGES = 32  # pixels: up to here the hyper-parameters are those of DomainBed's 28-pixel sets
At = Literal["best", "last", "both"]
Precision = Literal["float32", "bf16"]
Schedule = Literal["constant", "cosine"]
RegimeChoice = Literal["auto", Regime]


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """How a model is trained, whatever the method, the domains and the seed."""

    backbone: str = "efficientnet_lite0"
    """Network (itta list backbones), timm:MODEL, or package.module:Name."""
    weights: str = "imagenet"
    """Weights to start from: imagenet, none, or a .safetensors or .pth file."""
    image_size: int = 64
    """Resize images to this many pixels on each side."""
    steps: int = 300
    """Training steps."""
    augment: bool = True
    """Crop, flip and jitter the training images as DomainBed does."""
    strict: bool = False
    """Hold out identities as well as images; only the emoji data name the identity of an image."""
    allow_missing_classes: bool = False
    """Accept domains that lack some classes."""
    regime: RegimeChoice = "auto"
    """Defaults and search ranges of the hyper-parameters, as in DomainBed: for large images, for small ones, or for
    DomainNet. auto takes domainnet for DomainNet, small up to 32 pixels, and large otherwise."""

    schedule: Schedule = "constant"
    """Learning rate along the training: constant, or cosine, which falls to zero."""
    warmup: int = 0
    """Steps over which the learning rate rises from zero at the start."""
    average: float = 0.0
    """Decay of a moving average of the weights, for example 0.98; the averaged weights are measured and saved. 0 takes
    the weights of the last step."""
    bn: Literal["auto", "frozen", "live"] = "auto"
    """Batch normalisation in training: frozen keeps the stored statistics, live uses those of each batch. auto freezes
    pretrained networks, as DomainBed does."""

    head_start: bool = False
    """Fit the head to the features of the network that training starts from, before the first step."""

    def check(self) -> None:
        """Refuse values that no training can have."""
        if not 0 <= self.average < 1:
            raise InputError(f"--average must be at least 0 and below 1, got {self.average}.")
        check_at_least(1, image_size=self.image_size, steps=self.steps)
        check_at_least(0, warmup=self.warmup)
        check_at_most(MAX_IMAGE_SIZE, image_size=self.image_size)
        check_at_most(MAX_INTEGER, steps=self.steps)

    def shared(self) -> dict[str, Any]:
        """Return the fields of this class by name, without those that a subclass adds."""
        return {f.name: getattr(self, f.name) for f in fields(TrainSettings)}


@dataclass(frozen=True, kw_only=True)
class ComputeSettings:
    """The device that computes, and its precision."""

    device: str = "auto"
    """Device that computes: cpu, cuda, cuda:N or mps; auto takes a GPU if torch finds one."""
    precision: Precision = "float32"
    """bf16 computes networks in bfloat16, and losses and statistics in float32. It is fast on recent GPUs only."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How a training is run. The trained model depends on none of it, up to rounding on another device."""

    eval_every: int = 300  # steps between two records of the accuracies
    keep_checkpoint: bool = False  # of a finished training: three times the size of its model
    device: str = "auto"


@dataclass(frozen=True, kw_only=True)
class DataAccess:
    """Where images lie on this machine; results do not depend on it."""

    data_root: Path | None = None
    """Folder of the data sets known by name; without it, the variable ITTA_DATA names the folder."""
    cache: bool = True
    """Keep decoded images on disk for the next run."""


@dataclass(frozen=True, kw_only=True)
class StreamSettings:
    """In which order the images of a target arrive."""

    domain: tuple[str, ...] = ()
    """Target domain; several domains make one stream."""
    order: str = "iid"
    """Order of the classes: iid (random), sorted (one class after another), dirichlet (clusters), runs (several images
    of a class at a time), zipf1 or zipf2 (unequal classes in random order)."""
    domains: str = "in_turn"
    """Order of several domains: in_turn, gradual (one fades into the next), mixed, recurring (each several times)."""
    concentration: float = 0.1
    """With --order dirichlet: the smaller the value, the fewer classes come at a time."""
    batch_size: int = 32
    """Images per batch."""
    seed: int = 0
    """Seed of the order."""

    def check(self) -> None:
        """Refuse values that no stream can have."""
        check_at_least(1, batch_size=self.batch_size)
        check_seeds(seed=self.seed)
        if not 0 < self.concentration < math.inf:
            raise InputError(f"--concentration must be a number above 0, got {self.concentration}.")


@dataclass(frozen=True, kw_only=True)
class AdoptSettings:
    """How a network is wired, and which images it takes."""

    weights: str = ""
    """Weights of the network, a .safetensors or .pth file. Without this flag: the weights it is made with."""
    classes: tuple[str, ...] = ()
    """Names of the classes in the order of the network's logits. Default: the folders' names, sorted."""
    blocks: tuple[str, ...] = ()
    """Submodules after which adapters step in. Default: found for known families."""
    head: str = ""
    """Submodule that gives the logits. Default: found by running the network."""
    mean: tuple[float, ...] = ()
    """Mean of red, green and blue that the network expects to be subtracted. Default: it does so itself."""
    std: tuple[float, ...] = ()
    """Deviation of red, green and blue that the network expects images to be divided by."""
    image_size: int = 0
    """Pixels on each side of an image; 0 takes the size that the network states, or 224."""
    seed: int = 0
    """Seed of the choice of images."""
    stand_ins: bool = True
    """Measure stand-in targets, from which itta estimate learns; it takes as long as predicting 2,500 images."""
    device: str = "auto"
    """Device that computes: cpu, cuda, cuda:N or mps; auto takes a GPU if torch finds one."""


@dataclass(frozen=True)
class Adaptation:
    """The adapters that a sweep runs on each trained model."""

    adapters: tuple[str, ...] = ()
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by adapter
    at: At = "best"  # the step with the best source validation, the last one, or both
    batch_size: int = 32
    orders: tuple[str, ...] = ("iid",)  # of the classes along the stream

    @property
    def labels(self) -> dict[str, tuple[str, str]]:
        """Name each evaluation by its adapter, settings and order; map the name to the adapter and the order."""
        named = {}
        for order, adapter in product(self.orders, self.adapters):
            settings = " ".join(f"{k}={v}" for k, v in sorted(self.settings.get(adapter, {}).items()))
            label = f"{adapter} {settings} at={self.at} batch={self.batch_size}".replace("  ", " ")
            named[label if order == "iid" else f"{label} order={order}"] = (adapter, order)
        return named


def check_at_least(least: int, **values: int) -> None:
    """Refuse settings below a least value."""
    for name, value in values.items():
        if not value >= least:
            raise InputError(f"--{name.replace('_', '-')} must be at least {least}, got {value}.")


def check_at_most(most: int, **values: int) -> None:
    """Refuse settings above a largest value."""
    for name, value in values.items():
        if value > most:
            raise InputError(f"--{name.replace('_', '-')} must be at most {most}, got {value}.")


def check_seeds(**seeds: int) -> None:
    """Refuse seeds that would be written to a file and then not be read from it."""
    check_at_least(-MAX_INTEGER, **seeds)
    check_at_most(MAX_INTEGER, **seeds)


def check_threads(threads: int) -> None:
    """Refuse a number of CPU threads that this machine cannot run; torch crashes with thousands."""
    most = max(64, os.cpu_count() or 1)
    check_at_least(0, threads=threads)
    check_at_most(most, threads=threads)


def regime_of(data: str, image_size: int) -> Regime:
    """Choose DomainBed's search ranges for a data set.

    >>> regime_of("data/PACS", 224), regime_of("digits", 28), regime_of("domain_net", 224)
    ('large', 'small', 'domainnet')
    """
    if PurePath(data).name.lower() in ("domainnet", "domain_net"):
        return "domainnet"
    return "small" if image_size <= SMALL_IMAGES else "large"
