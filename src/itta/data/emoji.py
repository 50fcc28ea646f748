"""EmojiStyles: the same emoji in four drawing styles, 12 classes, embedded in the package.

NOTICE names the artists and their licences. tools/build_emoji.py rebuilds the files bit for bit.
"""

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from PIL import Image

from itta.data.dataset import DomainDataset
from itta.data.images import check_image_size
from itta.errors import unknown

STYLES = ("twemoji", "fluent-3d", "fluent-mono", "noto-mono")

_FOLDER = files("itta.data") / "emoji_styles"


class EmojiImages:
    """The images of one style. Its sheet is decoded at the first read.

    Emoji with the same pixels in some style (prince and princess) share a group, so a strict split never trains on an
    image that it evaluates.
    """

    def __init__(self, style: str, image_size: int) -> None:
        index = _index()
        codes = index["styles"][style]["tiles"]
        emoji = [index["emoji"][code] for code in codes]
        self.style, self.image_size = style, image_size
        self.labels = np.array([index["classes"].index(e["class"]) for e in emoji], dtype=np.int64)
        self.names = [f"{code} {e['label']}" for code, e in zip(codes, emoji)]
        self.groups = [e["identity"] for e in emoji]

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, indices: Sequence[int] | np.ndarray) -> torch.Tensor:
        """Return uint8 [B, 3, S, S]."""
        return _pixels(self.style, self.image_size)[torch.as_tensor(indices, dtype=torch.long)]


def load_emoji(styles: Sequence[str] | None = None, *, strict: bool = False, image_size: int = 64) -> DomainDataset:
    """Load emoji styles as domains, by default all of them. ``strict`` holds out identities as well as images.

    >>> dataset = load_emoji(["twemoji", "noto-mono"])
    >>> twemoji = dataset.domains["twemoji"]
    >>> twemoji.names[0], dataset.classes[twemoji.labels[0]], tuple(twemoji.read([0]).shape)
    ('1f600 grinning face', 'face', (1, 3, 64, 64))
    """
    check_image_size(image_size)
    chosen = STYLES if styles is None else styles
    for style in chosen:
        if style not in STYLES:
            raise unknown("emoji style", style, STYLES)
    domains = {style: EmojiImages(style, image_size) for style in chosen}
    return DomainDataset("EmojiStyles", tuple(_index()["classes"]), domains, image_size, strict)


@cache
def _index() -> dict[str, Any]:
    return json.loads((_FOLDER / "index.json").read_text(encoding="utf-8"))


@cache
def _pixels(style: str, image_size: int) -> torch.Tensor:
    """Cut a sheet into its tiles, uint8 [N, 3, S, S]."""
    side, columns, n = _index()["tile"], _index()["columns"], len(_index()["styles"][style]["tiles"])
    with (_FOLDER / f"{style}.png").open("rb") as file:
        sheet = np.array(Image.open(file).convert("RGB"))
    tiles = sheet.reshape(-1, side, columns, side, 3).swapaxes(1, 2).reshape(-1, side, side, 3)[:n]
    if image_size != side:
        size = (image_size, image_size)
        tiles = np.stack([np.asarray(Image.fromarray(t).resize(size, Image.Resampling.LANCZOS)) for t in tiles])
    return torch.from_numpy(tiles).permute(0, 3, 1, 2).contiguous()
