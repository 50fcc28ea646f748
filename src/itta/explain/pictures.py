"""Pictures for a run page: small images of a stream, and a grid of maps, as data URIs that need no file beside them."""

import base64
import io
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

from itta.adapters import Adapter, adapt
from itta.algorithms import Algorithm
from itta.data.target import Target
from itta.errors import InputError
from itta.explain.gradcam import Networks, Settings, look_at, starts_anew
from itta.explain.heatmap_plots import plot_heats
from itta.metrics.outcome import Outcome
from itta.nn.backbone import Backbone, keep
from itta.nn.tap import find_block
from itta.records.story import Picture

SIDE = 96  # pixels of a small image, at most
HELPED, HURT, OTHERWISE, UNLABELLED = 24, 24, 12, 48  # images to show, at most
MAPS = 4  # images in a grid of maps
GRID_WIDTH, GRID_BYTES = 1100, 180_000  # a data URI is a third longer


def changed_pictures(target: Target, classes: tuple[str, ...], before: Outcome, after: Outcome) -> tuple[Picture, ...]:
    """Images whose answer changed: some that adaptation helped, some that it hurt, some neither."""
    places = choose_changed(before, after, target.labelled)
    if not len(places):
        return ()
    rows, names = after.indices[places], target.images.names
    pixels = target.images.read(rows).permute(0, 2, 3, 1).numpy()
    return tuple(
        Picture(
            names[row],
            thumbnail(image),
            classes[after.labels[i]] if target.labelled else None,
            classes[before.predictions[i]],
            classes[after.predictions[i]],
        )
        for i, row, image in zip(places, rows, pixels)
    )


def choose_changed(before: Outcome, after: Outcome, labelled: bool) -> np.ndarray:
    """Places in the stream of changed answers: helped, then hurt, then otherwise, each spread over the stream."""
    changed = before.predictions != after.predictions
    if not labelled:
        return spread_over(np.flatnonzero(changed), UNLABELLED)
    kinds = (
        (after.correct & changed, HELPED),
        (before.correct & changed, HURT),
        (changed & ~before.correct & ~after.correct, OTHERWISE),
    )
    return np.concatenate([spread_over(np.flatnonzero(kind), most) for kind, most in kinds])


def spread_over(places: np.ndarray, most: int) -> np.ndarray:
    """Some of the places, at even distances, the first and the last among them.

    >>> spread_over(np.arange(10), 4), spread_over(np.arange(2), 4)
    (array([0, 3, 6, 9]), array([0, 1]))
    """
    if len(places) <= most:
        return places
    return places[np.linspace(0, len(places) - 1, most).round().astype(int)]


def thumbnail(pixels: np.ndarray) -> str:
    """A data URI of uint8 [S, S, 3]; larger images are made smaller, small ones stay as they are."""
    image = Image.fromarray(pixels)
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    return data_uri(image)


def data_uri(image: Image.Image, quality: int = 85) -> str:
    """JPEG or PNG, whichever is smaller."""
    found = {}
    for kind, options in (("jpeg", {"quality": quality}), ("png", {})):
        buffer = io.BytesIO()
        image.save(buffer, kind, optimize=True, **options)
        found[kind] = buffer.getvalue()
    kind = min(found, key=lambda k: len(found[k]))
    return f"data:image/{kind};base64,{base64.b64encode(found[kind]).decode()}"


def grid_of_maps(
    model: Algorithm, target: Target, adapter: Adapter, before: Outcome, after: Outcome
) -> tuple[str, str]:
    """Where each loss looks on some changed images, by the model as trained, and by the adapted one as the stream
    left it; a data URI and what it shows, or nothing and why."""
    places = places_to_look(before, after)
    source = adapt(model, "source").model  # a frozen copy
    networks: Networks = {"": (source, keep), **adapted_network(adapter)}
    try:
        block = find_block(source.backbone, source.task.image_size, fine_block(source.backbone, source.task.image_size))
        shown = look_at(networks, target, after.indices[places], block, Settings())
    except (InputError, RuntimeError) as error:
        return "", f"No maps were made: {error}"
    classes = source.task.classes
    rows = [told(classes, *(int(a[i]) for a in (after.labels, before.predictions, after.predictions))) for i in places]
    which = "true class" if target.labelled else "class that the trained model chose"
    caption = f"Grad-CAM at {block}; main is the loss of the {which}. Red lowers a loss, blue raises it."
    columns = ", ".join(("input", *shown.heats))
    images = "; ".join(f"{Path(name).name}: {row}" for name, row in zip(shown.names, rows)).replace("\n", ", ")
    text = f"A row of maps for each of {len(places)} images. Columns: {columns}. {caption} Images: {images}."
    with TemporaryDirectory() as folder:
        path = plot_heats(Path(folder) / "maps.png", shown.pictures, rows, shown.heats, caption)
        with Image.open(path) as figure:
            return small_enough(figure.convert("RGB")), text


def adapted_network(adapter: Adapter) -> Networks:
    """The network as the stream left it, of an adapter that has one."""
    try:
        return {} if starts_anew(adapter) else {f"after {adapter.name}": (adapter.network(), adapter.adapt_block)}
    except InputError:  # nothing in the network moves
        return {}


def places_to_look(before: Outcome, after: Outcome) -> np.ndarray:
    """Places of some images whose answer changed, filled up with the first ones."""
    changed = spread_over(np.flatnonzero(before.predictions != after.predictions), MAPS)
    same = np.setdiff1d(np.arange(min(len(after.indices), 2 * MAPS)), changed)
    return np.concatenate([changed, same[: MAPS - len(changed)]])


def fine_block(backbone: Backbone, image_size: int) -> str | None:
    """The last block with at least 4 × 4 cells: fewer show little."""
    shapes = backbone.block_shapes(image_size)
    fine = [name for name, shape in shapes.items() if len(shape) == 3 and min(shape[1:]) >= 4]
    return fine[-1] if fine else None


def told(classes: tuple[str, ...], label: int, before: int, after: int) -> str:
    """What is on an image, and what was said about it.

    >>> told(("cat", "dog"), 0, 1, 0), told(("cat", "dog"), -1, 1, 1)
    ('cat\\nsaid: dog → cat', 'said: dog')
    """
    said = f"said: {classes[before]}" + ("" if before == after else f" → {classes[after]}")
    return f"{classes[label]}\n{said}" if label >= 0 else said


def small_enough(figure: Image.Image) -> str:
    """A figure as a data URI that a page can bear."""
    figure.thumbnail((GRID_WIDTH, 10 * GRID_WIDTH), Image.Resampling.LANCZOS)
    found = ""
    for quality in (85, 70, 50, 30):
        found = data_uri(figure, quality)
        if len(found) * 3 / 4 <= GRID_BYTES:
            break
    return found
