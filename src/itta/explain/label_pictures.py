"""Pictures of images that a person labels, as data URIs: from the file itself, larger than the model sees them."""

from collections.abc import Sequence

import numpy as np
from PIL import Image

from itta.data.dataset import Images, JoinedImages
from itta.data.folder_images import FolderImages
from itta.data.images import read_image
from itta.explain.pictures import data_uri

SIDE = 192  # pixels


def label_pictures(images: Images, indices: Sequence[int]) -> list[str]:
    return [data_uri(Image.fromarray(pixels_of(images, int(i))), quality=80) for i in indices]


def pixels_of(images: Images, index: int) -> np.ndarray:
    """The pixels of an image, [S, S, 3]; those of a file are read from the file."""
    if isinstance(images, JoinedImages):
        part = int(np.searchsorted(images.starts, index, side="right")) - 1
        return pixels_of(list(images.parts.values())[part], index - int(images.starts[part]))
    if isinstance(images, FolderImages):
        return read_image(images.paths[index], SIDE).transpose(1, 2, 0)
    return images.read([index])[0].permute(1, 2, 0).numpy()
