"""Pictures for the page of a run: small images of a stream, and a grid of heat maps, as data URIs."""

import base64
import io
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

from itta.adapters import Adapter, adapt
from itta.errors import InputError
from itta.explain.adapted_stream import AdaptedStream
from itta.explain.gradcam import CamSettings, Networks, is_episodic, map_images
from itta.explain.heatmap_plots import plot_heats
from itta.explain.losses import NetworkState
from itta.metrics.outcome import Outcome
from itta.nn.backbone import Backbone
from itta.nn.tap import find_block
from itta.records.story import Picture

SIDE = 96  # pixels of a small image, at most
HELPED, HURT, OTHERWISE, UNLABELLED = 24, 24, 12, 48  # images to show, at most
MAPPED = 4  # images in a grid of maps
GRID_WIDTH, GRID_BYTES = 1100, 180_000  # at most; the data URI is a third longer


def changed_pictures(stream: AdaptedStream) -> tuple[Picture, ...]:
    """Some images with a changed answer: some that adaptation helped, some that it hurt, some of neither kind."""
    target, before, after, classes = stream.target, stream.before, stream.after, stream.classes
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
    """Positions of changed answers in the stream: helped, then hurt, then others, each spread over the stream."""
    changed = before.predictions != after.predictions
    if not labelled:
        return spread_evenly(np.flatnonzero(changed), UNLABELLED)
    kinds = (
        (after.correct & changed, HELPED),
        (before.correct & changed, HURT),
        (changed & ~before.correct & ~after.correct, OTHERWISE),
    )
    return np.concatenate([spread_evenly(np.flatnonzero(kind), most) for kind, most in kinds])


def spread_evenly(places: np.ndarray, most: int) -> np.ndarray:
    """At most ``most`` of the places, at even distances, with the first and the last.

    >>> spread_evenly(np.arange(10), 4), spread_evenly(np.arange(2), 4)
    (array([0, 3, 6, 9]), array([0, 1]))
    """
    if len(places) <= most:
        return places
    return places[np.linspace(0, len(places) - 1, most).round().astype(int)]


def thumbnail(pixels: np.ndarray) -> str:
    """A data URI of pixels [S, S, 3], uint8; large images are made smaller."""
    image = Image.fromarray(pixels)
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    return data_uri(image)


def data_uri(image: Image.Image, quality: int = 85) -> str:
    """An image as a data URI: JPEG or PNG, whichever is smaller."""
    found = {}
    for kind, options in (("jpeg", {"quality": quality}), ("png", {})):
        buffer = io.BytesIO()
        image.save(buffer, kind, optimize=True, **options)
        found[kind] = buffer.getvalue()
    kind = min(found, key=lambda k: len(found[k]))
    return f"data:image/{kind};base64,{base64.b64encode(found[kind]).decode()}"


def grid_of_maps(stream: AdaptedStream) -> tuple[str, str]:
    """Maps of each loss on some changed images, by the model as trained and by the adapted network at the end.

    Returns a data URI and a description; without maps, an empty string and the reason.
    """
    target, before, after = stream.target, stream.before, stream.after
    places = places_to_map(before, after)
    source = adapt(stream.model, "source").model  # a frozen copy
    networks: Networks = {"": NetworkState(source), **adapted_network(stream.adapter)}
    try:
        block = find_block(source.backbone, source.image_size, fine_block(source.backbone, source.image_size))
        shown = map_images(networks, target, after.indices[places], block, CamSettings())
    except (InputError, RuntimeError) as error:
        return "", f"No maps were made: {error}"
    answers = ((int(a[i]) for a in (after.labels, before.predictions, after.predictions)) for i in places)
    rows = [answer_text(stream.classes, *of_image) for of_image in answers]
    explained = "true class" if target.labelled else "class that the trained model chose"
    caption = f"Grad-CAM at {block}; main is the loss of the {explained}. Red lowers a loss, blue raises it."
    columns = ", ".join(("input", *shown.heats))
    images = "; ".join(f"{Path(name).name}: {row}" for name, row in zip(shown.names, rows)).replace("\n", ", ")
    text = f"A row of maps for each of {len(places)} images. Columns: {columns}. {caption} Images: {images}."
    with TemporaryDirectory() as folder:
        path = plot_heats(Path(folder) / "maps.png", shown.pictures, rows, shown.heats, caption)
        with Image.open(path) as figure:
            return bounded_data_uri(figure.convert("RGB")), text


def adapted_network(adapter: Adapter) -> Networks:
    """The network at the end of the stream; empty if the adapter does not change the network or forgets its changes."""
    try:
        if is_episodic(adapter):
            return {}
        return {f"after {adapter.name}": NetworkState(adapter.network(), adapter.adapt_block)}
    except InputError:  # nothing in the network changes
        return {}


def places_to_map(before: Outcome, after: Outcome) -> np.ndarray:
    """Positions of some images with a changed answer; if these are few, also of the first others."""
    changed = spread_evenly(np.flatnonzero(before.predictions != after.predictions), MAPPED)
    same = np.setdiff1d(np.arange(min(len(after.indices), 2 * MAPPED)), changed)
    return np.concatenate([changed, same[: MAPPED - len(changed)]])


def fine_block(backbone: Backbone, image_size: int) -> str | None:
    """The last block with at least 4 × 4 cells; smaller maps show little."""
    shapes = backbone.block_shapes(image_size)
    fine = [name for name, shape in shapes.items() if len(shape) == 3 and min(shape[1:]) >= 4]
    return fine[-1] if fine else None


def answer_text(classes: tuple[str, ...], label: int, before: int, after: int) -> str:
    """The class of an image and the answers to it; a label of -1 is unknown.

    >>> answer_text(("cat", "dog"), 0, 1, 0), answer_text(("cat", "dog"), -1, 1, 1)
    ('cat\\nsaid: dog → cat', 'said: dog')
    """
    said = f"said: {classes[before]}" + ("" if before == after else f" → {classes[after]}")
    return f"{classes[label]}\n{said}" if label >= 0 else said


def bounded_data_uri(figure: Image.Image) -> str:
    """A figure as a data URI of bounded size, in lower quality if needed."""
    figure.thumbnail((GRID_WIDTH, 10 * GRID_WIDTH), Image.Resampling.LANCZOS)
    found = ""
    for quality in (85, 70, 50, 30):
        found = data_uri(figure, quality)
        if len(found) * 3 / 4 <= GRID_BYTES:
            break
    return found
