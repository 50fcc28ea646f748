"""Look where each loss looks: Grad-CAM of several losses on a target's images, and how alike their maps are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from itta.adapters import Adapter, Guard, adapt
from itta.algorithms import Algorithm
from itta.data.loaders import stream
from itta.data.target import Target, open_images
from itta.errors import InputError
from itta.explain.heatmap_plots import plot_heats
from itta.explain.losses import Draw, batch_maps, choose_losses, draw
from itta.functional.heat_maps import Sign, enlarge, heat, hot_zone, iou, spearman
from itta.metrics.accuracy import mean_and_error
from itta.nn.backbone import After, keep
from itta.nn.tap import find_block
from itta.progress import ReportProgress, silent
from itta.run.evaluate import evaluate
from itta.seeds import derive_seed
from itta.store.model import load_model, read_description

OTHER = "main of another image"  # how alike maps are that share nothing but the network
Key = tuple[str, str]  # of a map: which loss, of the network in which state; "" is the model as trained
Networks = dict[str, tuple[Algorithm, After]]
"""State -> the network, and what an adapter put after its blocks."""


@dataclass(frozen=True)
class Settings:
    losses: tuple[str, ...] = ()  # none named means all that the model has
    block: str | None = None  # the last with spatial extent
    images: int = 6  # to show
    measure: int | None = None  # images to measure on; None means all
    hot: float = 0.2  # share of the pixels that counts as the hot zone
    sign: Sign = "both"
    batch_size: int = 32
    seed: int = 0


@dataclass(frozen=True)
class Shown:
    """Images with a map of each loss."""

    pictures: np.ndarray  # [n, S, S, 3], 0 to 1
    names: list[str]
    labels: list[str]  # what is on it, and what the model as trained said where that differs
    heats: dict[str, np.ndarray]  # by title, [n, S, S]


class Gallery:
    """The chosen images and their maps, picked out as the batches come."""

    def __init__(self, classes: Sequence[str], chosen: Sequence[int]) -> None:
        self.classes, self.chosen = classes, list(chosen)
        self.pictures: dict[int, np.ndarray] = {}
        self.labels: dict[int, str] = {}
        self.heats: dict[Key, dict[int, np.ndarray]] = {}

    def add(self, rows: np.ndarray, x: Tensor, y: Tensor, y_hat: Tensor, heats: Mapping[Key, Tensor]) -> None:
        for j, i in enumerate(rows.tolist()):
            if i not in self.chosen:
                continue
            self.pictures[i] = x[j].permute(1, 2, 0).numpy()
            said = self.classes[int(y_hat[j])]
            self.labels[i] = said if y[j] == y_hat[j] else f"said: {said}"
            if 0 <= y[j] != y_hat[j]:
                self.labels[i] = f"{self.classes[int(y[j])]}\n{self.labels[i]}"
            for key, maps in heats.items():
                self.heats.setdefault(key, {})[i] = maps[j].numpy()

    def shown(self, names: Sequence[str]) -> Shown:
        return Shown(
            np.stack([self.pictures[i] for i in self.chosen]),
            [names[i] for i in self.chosen],
            [self.labels[i] for i in self.chosen],
            {title(*key): np.stack([maps[i] for i in self.chosen]) for key, maps in self.heats.items()},
        )


def run_cam(
    model: Path,
    data: Sequence[str],
    domain: str | None,
    settings: Settings,
    adapter: str | None = None,
    adapter_settings: Mapping[str, Any] = MappingProxyType({}),
    out: Path = Path("cam.png"),
    report: ReportProgress = silent,
) -> dict[str, Any]:
    """Load a model and a target, look, and write the figure; gives the numbers."""
    description = read_description(model)
    trained = load_model(description)
    chosen = adapt(trained, adapter, **adapter_settings) if adapter else None
    if adapter_settings and chosen is None:
        raise InputError("--set sets an adapter, and none is named: add --adapter.")
    result, shown = look(trained, open_images(tuple(data), description.expected, domain), settings, chosen, report)
    plot_heats(out, shown.pictures, shown.labels, shown.heats, caption(result))
    return result | {"shown": shown.names, "files": [str(out)]}


def look(
    model: Algorithm,
    target: Target,
    settings: Settings,
    adapter: Adapter | None = None,
    report: ReportProgress = silent,
) -> tuple[dict[str, Any], Shown]:
    """Maps of some images, and over all measured ones how alike each loss's map is to the main loss's.

    With an adapter, also of the network as it is after one pass over the target.
    """
    if not 0 < settings.hot < 1:
        raise InputError(f"the hot zone is a share of the pixels: expected above 0 and below 1, got {settings.hot:g}.")
    model = adapt(model, "source").model  # a frozen copy
    losses = choose_losses(model, settings.losses)
    every = ("main", *(name for name in losses if name != "main"))  # the main loss is what they are compared with
    block = find_block(model.backbone, model.task.image_size, settings.block)
    networks: Networks = {"": (model, keep)}
    if adapter is not None:
        networks[f"after {adapter.name}"] = adapted(adapter, target, settings, report)
    order = np.random.RandomState(derive_seed(settings.seed, "stream")).permutation(target.indices)[: settings.measure]
    generator = torch.Generator().manual_seed(derive_seed(settings.seed, "cam"))
    gallery = Gallery(model.task.classes, spread(order, target.images.labels, settings.images))
    similar: dict[str, list[np.ndarray]] = {}
    done = 0
    for rows, x, y in stream(target.images, order, settings.batch_size, None, least=2):
        drawn = draw(model, every, len(x), generator)
        maps, y_hat = all_maps(networks, x, y, every, block, drawn)
        for name, (a, b) in compared(maps).items():
            similar.setdefault(name, []).append(alike(a, b, settings))
        heats = {key: visible(m, settings.sign) for key, m in maps.items() if key[0] in losses}
        gallery.add(rows, x, y, y_hat, heats)
        done += len(rows)
        report("maps", done, len(order))
    result = {
        "target": target.name,
        "images": len(order),
        "labels": "true" if target.labelled else "predicted",
        "block": block,
        "map": list(model.backbone.block_shapes(model.task.image_size)[block][1:]),
        "adapter": adapter and {"name": adapter.name, "settings": adapter.describe()},
        "losses": list(losses),
        **{name: getattr(settings, name) for name in ("sign", "hot", "batch_size", "seed")},
        "similarity_to_main": {name: summary(np.concatenate(rows)) for name, rows in similar.items()},
    }
    return result, gallery.shown(target.images.names)


def look_at(networks: Networks, target: Target, rows: np.ndarray, block: str, settings: Settings) -> Shown:
    """Maps of these images, in this order, taken as one batch; of other states than "" those of the main loss."""
    model, _ = networks[""]
    losses = choose_losses(model, settings.losses)
    generator = torch.Generator().manual_seed(derive_seed(settings.seed, "cam"))
    gallery = Gallery(model.task.classes, rows.tolist())
    for _, x, y in stream(target.images, rows, len(rows)):
        maps, y_hat = all_maps(networks, x, y, losses, block, draw(model, losses, len(x), generator))
        kept = {key: visible(m, settings.sign) for key, m in maps.items() if key[0] == "main" or not key[1]}
        gallery.add(rows, x, y, y_hat, kept)
    return gallery.shown(target.images.names)


def all_maps(
    networks: Networks, x: Tensor, y: Tensor, losses: Sequence[str], block: str, drawn: Draw
) -> tuple[dict[Key, Tensor], Tensor]:
    """Maps [B, S, S] of every loss and state, and what the model as trained predicts.

    Where there are no labels, every network is to explain what the model as trained said.
    """
    maps: dict[Key, Tensor] = {}
    y_hat: Tensor | None = None
    for state, (network, after) in networks.items():
        small, logits = batch_maps(network, x, y, losses, block, drawn, after)
        if y_hat is None:
            y_hat = logits.argmax(1)
            y = torch.where(y < 0, y_hat, y)
        maps |= {(loss, state): enlarge(m.double(), x.shape[-1]) for loss, m in small.items()}
    assert y_hat is not None
    return maps, y_hat


def visible(maps: Tensor, sign: Sign) -> Tensor:
    """What is drawn: one side of the maps, or both, positive where activation lowers the loss."""
    return -maps if sign == "both" else heat(maps, sign)


def caption(result: Mapping[str, Any]) -> str:
    cells = "×".join(map(str, result["map"]))
    where = f"{result['target']}: Grad-CAM at {result['block']} ({cells} cells), main loss of {result['labels']} labels"
    side = "red lowers the loss, blue raises it" if result["sign"] == "both" else f"what {result['sign']} the loss"
    return f"{where}\n{side}"


def title(loss: str, state: str) -> str:
    return f"{loss}, {state}" if state else loss


def adapted(adapter: Adapter, target: Target, settings: Settings, report: ReportProgress) -> tuple[Algorithm, After]:
    """The network after one pass over the target, and what the adapter put after its blocks."""
    adapter.network()  # refuse before the work, not after
    if starts_anew(adapter):
        raise InputError(
            f"{adapter.name} starts anew all the time, so that nothing has adapted along the stream: "
            "add --set episodic=false."
        )
    evaluate(
        adapter, target.images, target.indices, settings.batch_size, settings.seed, report,
    )  # fmt: skip
    return adapter.network(), adapter.adapt_block


def starts_anew(adapter: Adapter) -> bool:
    """Whether it forgets all the time, so that its network at the end says nothing about the stream."""
    inner = adapter.inner if isinstance(adapter, Guard) else adapter
    return bool(getattr(inner.hp, "episodic", False))


def spread(order: np.ndarray, labels: np.ndarray, n: int) -> list[int]:
    """The first n images of the order, but those of classes seen less often first; without classes just the first."""
    seen: dict[int, int] = {}
    turn = []
    for i in order:
        turn.append(seen.setdefault(int(labels[i]), 0))
        seen[int(labels[i])] += 1
    return [int(order[j]) for j in np.argsort(turn, kind="stable")[:n]]


def compared(maps: Mapping[Key, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """Which maps are held against each other, by title: those of a network against that of its own main loss.

    Besides, the main loss's after adaptation against that before, and against that of another image.
    """
    before = maps["main", ""]
    pairs = {}
    for (loss, state), m in maps.items():
        if loss != "main":
            pairs[title(loss, state)] = (m, maps["main", state])
        elif state:
            pairs[f"main {state}, with main before"] = (m, before)
    if len(before) > 1:
        pairs[OTHER] = (before.roll(1, 0), before)
    return pairs


def alike(a: Tensor, b: Tensor, settings: Settings) -> np.ndarray:
    """Rank correlation of the signed maps, IoU of the hot zones, and whether a map has no heat; [B, 3]."""
    zones = [hot_zone(heat(m, settings.sign), settings.hot) for m in (a, b)]
    empty = ~(zones[0].flatten(1).any(1) & zones[1].flatten(1).any(1))
    return torch.stack([spearman(a, b), iou(*zones).double(), empty.double()], 1).numpy()


def summary(rows: np.ndarray) -> dict[str, Any]:
    """Means and standard errors over the images where the measure exists, and the share without heat."""
    result: dict[str, Any] = {}
    for name, values in zip(("spearman", "iou"), rows.T):
        there = values[np.isfinite(values)].tolist()
        mean, error = mean_and_error(there) if there else (None, None)
        result |= {name: mean, f"{name}_se": error, f"{name}_images": len(there)}
    return result | {"without_heat": float(rows[:, 2].mean())}
