"""Estimate the class frequencies of a stream from a model's predictions, without labels.

Saerens, Latinne, Decaestecker, Adjusting the Outputs of a Classifier to New a Priori Probabilities, Neural Computation
2002. Lipton, Wang, Smola, Detecting and Correcting for Label Shift with Black Box Predictors, ICML 2018.
Azizzadenesheli, Liu, Yang, Anandkumar, Regularized Learning for Domain Adaptation under Label Shifts, ICLR 2019.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

LEAST = 1e-9  # of a probability that is divided by


def mean_answers(logits: Tensor, labels: Tensor, smoothing: float = 1.0) -> Tensor:
    """Return M[y, c], the mean probability of class c over images of class y; [C, C].

    Each class gets ``smoothing`` more images with certain and right predictions, so a class without images has a row.

    >>> mean_answers(torch.tensor([[0.9, 0.1], [0.7, 0.3]]).log(), torch.tensor([0, 0]), smoothing=0.5)
    tensor([[0.8400, 0.1600],
            [0.0000, 1.0000]])
    """
    p = logits.softmax(1)
    n = p.shape[1]
    sums = torch.zeros(n, n, dtype=p.dtype, device=p.device).index_add_(0, labels, p)
    counts = torch.bincount(labels, minlength=n).to(p)
    return (sums + smoothing * torch.eye(n).to(p)) / (counts + smoothing).unsqueeze(1)


def prior_from_confusions(
    confusions: Tensor, mean: Tensor, pull: float | Tensor = 0.2, usual: Tensor | None = None, iterations: int = 20
) -> Tensor:
    """Return the prior π with Mᵀπ ≈ the mean prediction ḡ, pulled towards the usual prior u; [B, C] for ḡ [B, C].

    Start from u, or from equal classes, and iterate π ← π∘(M·(ḡ/Mᵀπ)), then π ← (π + pull·u)/(1 + pull). The pull is
    one number, or [B, 1]. The first step keeps the sum of π at that of ḡ, which is 1.

    >>> M = torch.tensor([[0.8, 0.2], [0.4, 0.6]])
    >>> prior_from_confusions(M, torch.tensor([[0.5, 0.5]]), pull=0.0, iterations=500)  # class 0 is predicted too often
    tensor([[0.2500, 0.7500]])
    """
    u = np.full(mean.shape[1], 1 / mean.shape[1]) if usual is None else usual.numpy()
    weight = pull.double().numpy() if isinstance(pull, Tensor) else pull
    found = explaining_prior(confusions.double().numpy(), mean.double().numpy(), weight, u, iterations)
    return torch.from_numpy(found).to(mean)


def explaining_prior(
    m: np.ndarray, wanted: np.ndarray, pull: float | np.ndarray, usual: np.ndarray, iterations: int = 20
) -> np.ndarray:
    """Do what `prior_from_confusions` does, in NumPy: torch would wake its threads for each of these small products."""
    own, pulled = 1 / (1 + pull), pull / (1 + pull) * usual
    prior = np.broadcast_to(usual, wanted.shape)
    for _ in range(iterations):
        prior = own * prior * ((wanted / np.maximum(prior @ m, LEAST)) @ m.T) + pulled
    return prior


def calibrated_temperature(logits: Tensor, labels: Tensor, low: float = 0.2, high: float = 5.0) -> float:
    """Return the T with the lowest cross-entropy of softmax(logits/T); Guo et al., ICML 2017.

    >>> torch.manual_seed(0) and None
    >>> logits, labels = 4 * torch.eye(2).repeat(50, 1), torch.tensor([0, 1]).repeat(50)
    >>> labels[:20] = 1 - labels[:20]  # one in five is wrong, at a confidence of 0.98
    >>> round(calibrated_temperature(logits, labels), 2)
    2.89
    """

    def loss(log_t: float) -> float:
        return float(F.cross_entropy(logits.double() / torch.tensor(log_t).exp().double(), labels))

    a, b = (float(torch.tensor(t).log()) for t in (low, high))
    for _ in range(40):  # golden section: the loss has one minimum in 1/T
        c, d = b - 0.618034 * (b - a), a + 0.618034 * (b - a)
        a, b = (a, d) if loss(c) < loss(d) else (c, b)
    return float(torch.tensor((a + b) / 2).exp())
