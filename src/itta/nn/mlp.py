"""Linear layers with ReLUs between them."""

from torch import nn


def mlp(*sizes: int, dropout: float | None = None) -> nn.Sequential:
    """Linear layers from each size to the next; between two of them a ReLU, after dropout where that is given.

    Dropout of 0 does nothing but takes its place, so that the weights' names do not depend on how much is dropped.

    >>> mlp(8, 4, 1)
    Sequential(
      (0): Linear(in_features=8, out_features=4, bias=True)
      (1): ReLU()
      (2): Linear(in_features=4, out_features=1, bias=True)
    )
    """
    layers: list[nn.Module] = []
    for n_in, n_out in zip(sizes, sizes[1:]):
        if layers and dropout is not None:
            layers.append(nn.Dropout(dropout))
        if layers:
            layers.append(nn.ReLU())
        layers.append(nn.Linear(n_in, n_out))
    return nn.Sequential(*layers)
