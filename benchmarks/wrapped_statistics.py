"""What statistics of the source images do for `itta+` on a wrapped network, and whether it may know these images.

A small network is trained in plain torch on one drawing style, and wrapped. `itta+` adapts it to the other styles with
statistics of held-out images, of as many training images, and without statistics. Nothing else differs. Accuracy gained
over the network as it is, in points, mean and standard error over the trainings.
"""

import argparse
import json
import statistics
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

import itta
from itta.data import load_dataset
from itta.data.dataset import Images
from itta.data.loaders import stream

SOURCE, TARGETS, HELD_OUT, SIZE = "twemoji", ("fluent-3d", "fluent-mono", "noto-mono"), 128, 32


def make_network(classes: int) -> nn.Sequential:
    """Make the network of examples/own_model.ipynb."""
    layers: list[nn.Module] = []
    for n_in, n_out in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(n_in, n_out, 3, 2, 1), nn.BatchNorm2d(n_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def train(images: Images, rows: np.ndarray, classes: int, seed: int, epochs: int) -> nn.Module:
    torch.manual_seed(seed)
    net = make_network(classes)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for epoch in range(epochs):
        for _, x, y in stream(images, rows, 32, seed=epoch + 100 * seed):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
    return net.eval()


def measure(seed: int, epochs: int) -> dict[str, dict[str, float]]:
    """Target -> accuracy as trained, and points gained with each source of statistics."""
    emoji = load_dataset("emoji", image_size=SIZE)
    images = emoji.domain(SOURCE)
    order = np.random.default_rng(seed).permutation(len(images))
    held_out, rest = order[:HELD_OUT], order[HELD_OUT:]
    net = train(images, rest, len(emoji.classes), seed, epochs)

    def adapted(rows: np.ndarray) -> nn.Module:
        model = itta.wrap(net, classes=emoji.classes, image_size=SIZE)
        if len(rows):
            itta.collect(model, {SOURCE: [(x, y) for _, x, y in stream(images, rows, 32)]})
        return itta.adapt(model, "itta+")

    plain = itta.evaluate(itta.wrap(net, classes=emoji.classes, image_size=SIZE), emoji, TARGETS).outcomes
    found = {target: {"as trained": 100 * outcome.accuracy} for target, outcome in plain.items()}
    for name, rows in (("held out", held_out), ("trained on", rest[:HELD_OUT]), ("none", rest[:0])):
        for target, outcome in itta.evaluate(adapted(rows), emoji, TARGETS).outcomes.items():
            found[target][name] = 100 * (outcome.accuracy - plain[target].accuracy)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="trainings to average over, at least 2")
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args(argv)
    runs = [measure(seed, options.epochs) for seed in range(options.seeds)]
    result = {
        target: {
            name: {
                "mean": statistics.mean(run[target][name] for run in runs),
                "error": statistics.stdev(run[target][name] for run in runs) / len(runs) ** 0.5,
            }
            for name in runs[0][target]
        }
        for target in TARGETS
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
