"""A linear classifier in closed form: ridge regression on one-hot labels."""

import torch
import torch.nn.functional as F
from torch import Tensor

LEAST = 1e-3  # deviation of a column that is divided by


def ridge_classifier(z: Tensor, labels: Tensor, classes: int, penalty: float) -> tuple[Tensor, Tensor]:
    """Fit scores z·Wᵀ + b to one-hot labels; return W [C, d] and b [C].

    The columns of z [N, d] are standardised, and each coefficient is penalised by ``penalty`` for each row.

    >>> z, labels = torch.tensor([[0.0], [0.0], [2.0], [2.0]]), torch.tensor([0, 0, 1, 1])
    >>> W, b = ridge_classifier(z, labels, classes=2, penalty=0.0)
    >>> (z @ W.T + b).round(decimals=3)[[0, 2]].tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    wanted = F.one_hot(labels, classes).double()
    mean, std = z.double().mean(0), z.double().std(0, correction=0).clamp(min=LEAST)
    rows = (z.double() - mean) / std
    gram = rows.T @ rows + penalty * len(rows) * torch.eye(rows.shape[1]).to(rows)
    weight = torch.linalg.solve(gram, rows.T @ (wanted - wanted.mean(0))).T / std
    return weight.float(), (wanted.mean(0) - weight @ mean).float()
