"""Linear layers with ReLUs between them."""

from torch import nn


def mlp(*sizes: int, dropout: float | None = None) -> nn.Sequential:
    """Build linear layers from each size to the next, with a ReLU between two of them.

    If ``dropout`` is given, a dropout layer comes before each ReLU. Dropout of 0 is a layer too, so the names of the
    weights do not depend on the amount.

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
