"""Images with a heat map of each loss, collected while batches are processed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

Key = tuple[str, str]  # of a map: the loss, and the state of the network; "" is the model as trained


@dataclass(frozen=True)
class ImageMaps:
    """Images with a map of each loss."""

    pictures: np.ndarray  # [n, S, S, 3], 0 to 1
    names: list[str]
    labels: list[str]  # the class of each image, and the answer of the model as trained if it differs
    heats: dict[str, np.ndarray]  # title of the map -> [n, S, S]


class MapCollector:
    """Collects the chosen images and their maps from batches."""

    def __init__(self, classes: Sequence[str], chosen: Sequence[int]) -> None:
        self.classes, self.chosen = classes, list(chosen)
        self.pictures: dict[int, np.ndarray] = {}
        self.labels: dict[int, str] = {}
        self.heats: dict[Key, dict[int, np.ndarray]] = {}

    def add(self, rows: np.ndarray, x: Tensor, y: Tensor, y_hat: Tensor, heats: Mapping[Key, Tensor]) -> None:
        """Keep the chosen images of a batch: their pixels x, labels y, predictions and maps."""
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

    def collected(self, names: Sequence[str]) -> ImageMaps:
        return ImageMaps(
            np.stack([self.pictures[i] for i in self.chosen]),
            [names[i] for i in self.chosen],
            [self.labels[i] for i in self.chosen],
            {map_title(*key): np.stack([maps[i] for i in self.chosen]) for key, maps in self.heats.items()},
        )


def map_title(loss: str, state: str) -> str:
    return f"{loss}, {state}" if state else loss


def choose_varied(order: np.ndarray, labels: np.ndarray, n: int) -> list[int]:
    """Choose n images from as many classes as possible, in their order; without labels, the first n."""
    seen: dict[int, int] = {}
    turn = []
    for i in order:
        turn.append(seen.setdefault(int(labels[i]), 0))
        seen[int(labels[i])] += 1
    return [int(order[j]) for j in np.argsort(turn, kind="stable")[:n]]
