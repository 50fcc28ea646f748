"""Grad-CAM of several losses on a target's images, before and after adaptation, and the similarity of their maps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from itta.adapters import Adapter, Guard, adapt
from itta.adapters.unlabelled_pass import observe_all
from itta.data.loaders import stream
from itta.data.target import Target
from itta.errors import InputError, unknown
from itta.explain.heatmap_plots import plot_heats
from itta.explain.image_maps import ImageMaps, Key, MapCollector, choose_varied
from itta.explain.losses import MapRequest, NetworkState, batch_maps, choose_losses, draw_random_views
from itta.explain.map_similarity import map_pairs, mean_similarity, pair_similarity
from itta.functional.heat_maps import Sign, enlarge, heat
from itta.functional.transfers import send
from itta.models.trained import Trained
from itta.nn.device import device_of
from itta.nn.tap import find_block
from itta.progress import ReportProgress, silent
from itta.seeds import derive_seed

Networks = dict[str, NetworkState]  # by the name of the state; "" is the model as trained


@dataclass(frozen=True)
class CamSettings:
    losses: tuple[str, ...] = ()  # empty: all that the model has
    block: str | None = None  # None: the last one with a spatial output
    images: int = 6  # to show
    measure: int | None = None  # images to measure on; None: all
    hot: float = 0.2  # share of the pixels that counts as the hot zone
    sign: Sign = "both"
    batch_size: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.hot < 1:
            raise InputError(f"the hot zone is a share of the pixels: expected above 0 and below 1, got {self.hot:g}.")
        if self.sign not in get_args(Sign):
            raise unknown("sign", self.sign, get_args(Sign))


def draw_maps(
    out: Path,
    model: Trained,
    target: Target,
    settings: CamSettings,
    adapter: Adapter | None = None,
    report: ReportProgress = silent,
) -> dict[str, Any]:
    """Draw the maps of some images, and return the similarities over all measured images."""
    result, shown = explain_target(model, target, settings, adapter, report)
    plot_heats(out, shown.pictures, shown.labels, shown.heats, figure_caption(result))
    return result | {"shown": shown.names, "files": [str(out)]}


def explain_target(
    model: Trained,
    target: Target,
    settings: CamSettings,
    adapter: Adapter | None = None,
    report: ReportProgress = silent,
) -> tuple[dict[str, Any], ImageMaps]:
    """Compare the map of each loss with that of the main loss on all measured images; also return some maps.

    With an adapter, do the same for the network as it is after one pass over the target.
    """
    model = adapt(model, "source").model  # a frozen copy
    losses = choose_losses(model, settings.losses)
    every = ("main", *(name for name in losses if name != "main"))  # the others are compared with the main loss
    block = find_block(model.backbone, model.image_size, settings.block)
    networks: Networks = {"": NetworkState(model)}
    if adapter is not None:
        networks[f"after {adapter.name}"] = adapted_state(adapter, target, settings, report)
    order = np.random.RandomState(derive_seed(settings.seed, "stream")).permutation(target.indices)[: settings.measure]
    generator = torch.Generator().manual_seed(derive_seed(settings.seed, "cam"))
    collector = MapCollector(model.classes, choose_varied(order, target.images.labels, settings.images))
    similar: dict[str, list[np.ndarray]] = {}
    done = 0
    for rows, x, y in stream(target.images, order, settings.batch_size, None, least=2):
        wanted = MapRequest(every, block, draw_random_views(model, every, len(x), generator))
        maps, y_hat = all_maps(networks, x, y, wanted)
        for name, (a, b) in map_pairs(maps).items():
            similar.setdefault(name, []).append(pair_similarity(a, b, settings.sign, settings.hot))
        heats = {key: drawn_side(m, settings.sign) for key, m in maps.items() if key[0] in losses}
        collector.add(rows, x, y, y_hat, heats)
        done += len(rows)
        report("maps", done, len(order))
    result = {
        "target": target.name,
        "images": len(order),
        "labels": "true" if target.labelled else "predicted",
        "block": block,
        "map": list(model.backbone.block_shapes(model.image_size)[block][1:]),
        "adapter": adapter and {"name": adapter.name, "settings": adapter.describe()},
        "losses": list(losses),
        **{name: getattr(settings, name) for name in ("sign", "hot", "batch_size", "seed")},
        "similarity_to_main": {name: mean_similarity(np.concatenate(rows)) for name, rows in similar.items()},
    }
    return result, collector.collected(target.images.names)


def map_images(
    networks: Networks, target: Target, rows: Sequence[int] | np.ndarray, block: str, settings: CamSettings
) -> ImageMaps:
    """Map these images as one batch: all losses of the model as trained, and the main loss of the other networks."""
    model, chosen = networks[""].model, np.asarray(rows)
    losses = choose_losses(model, settings.losses)
    generator = torch.Generator().manual_seed(derive_seed(settings.seed, "cam"))
    collector = MapCollector(model.classes, chosen.tolist())
    for _, x, y in stream(target.images, chosen, len(chosen)):
        wanted = MapRequest(losses, block, draw_random_views(model, losses, len(x), generator))
        maps, y_hat = all_maps(networks, x, y, wanted)
        kept = {key: drawn_side(m, settings.sign) for key, m in maps.items() if key[0] == "main" or not key[1]}
        collector.add(chosen, x, y, y_hat, kept)
    return collector.collected(target.images.names)


def all_maps(networks: Networks, x: Tensor, y: Tensor, wanted: MapRequest) -> tuple[dict[Key, Tensor], Tensor]:
    """Maps [B, S, S] of every loss and network, and the predictions of the model as trained; all on the host.

    Images without labels take the prediction of the model as trained as their label, for every network.
    """
    maps: dict[Key, Tensor] = {}
    y_hat: Tensor | None = None
    for state, network in networks.items():
        device = device_of(network.model)
        small, logits = batch_maps(network, send(x, device), send(y, device), wanted)
        if y_hat is None:
            y_hat = logits.argmax(1).cpu()
            y = torch.where(y < 0, y_hat, y)
        maps |= {(loss, state): enlarge(m.cpu().double(), x.shape[-1]) for loss, m in small.items()}
    assert y_hat is not None
    return maps, y_hat


def drawn_side(maps: Tensor, sign: Sign) -> Tensor:
    """The values to draw: one side of the maps, or both, positive where activation lowers the loss."""
    return -maps if sign == "both" else heat(maps, sign)


def figure_caption(result: Mapping[str, Any]) -> str:
    cells = "×".join(map(str, result["map"]))
    where = f"{result['target']}: Grad-CAM at {result['block']} ({cells} cells), main loss of {result['labels']} labels"
    sign = result["sign"]
    side = "red lowers the loss, blue raises it" if sign == "both" else f"activation here {sign} the loss"
    return f"{where}\n{side}"


def adapted_state(adapter: Adapter, target: Target, settings: CamSettings, report: ReportProgress) -> NetworkState:
    """The network after one pass over the target, and the change that the adapter makes after its blocks."""
    adapter.network()  # refuse before the work, not after it
    if is_episodic(adapter):
        raise InputError(
            f"{adapter.name} resets itself all the time, so its network does not change along the stream: "
            "add --set episodic=false."
        )
    adapter.reset()
    batches = target.batches(settings.batch_size, settings.seed, adapter.needs.batch)
    observe_all(adapter, (x for _, x, _ in batches), len(target.indices), report)
    return NetworkState(adapter.network(), adapter.adapt_block)


def is_episodic(adapter: Adapter) -> bool:
    """Whether an adapter resets itself all the time, so that its last network says nothing about the stream."""
    inner = adapter.inner if isinstance(adapter, Guard) else adapter
    return bool(getattr(inner.hp, "episodic", False))
