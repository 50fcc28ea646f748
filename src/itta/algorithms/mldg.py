"""MLDG. Learning to Generalize: Meta-Learning for Domain Generalization. Li, Yang, Song, Hospedales, AAAI 2018.
https://arxiv.org/abs/1710.03463

First-order, as in DomainBed: no derivative passes through the inner step. The inner step is the first step of a new
Adam, so it has size lr along the sign of the gradient. There are two ways to pair domains. ``holdout``, the default, is
DomainBed's present way: with three domains, one pair a step. It holds out at most all domains but one. (With
``reference`` it may hold out all; then it learns nothing.) ``ring`` is DomainBed's older way, and most likely the one
that the ITTA paper ran: every domain is trained on once and tested on once, so with three domains a step takes three
times as long. The batches of a pair are cut to the length of the shorter one.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from itta.algorithms import base
from itta.algorithms.base import Algorithm, Batch, Needs, Numbers, Task
from itta.errors import InputError
from itta.functional.transfers import fetch_numbers
from itta.hparams import choice, hp, power

ADAM_EPS = 1e-8
Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Hparams(base.Hparams):
    mldg_beta: float = hp(1.0, "weight of the loss after the inner step", power(10, -1, 1))
    n_meta_test: int = hp(2, "held-out domains per step, for mldg_pairs=holdout", choice(1, 2))
    mldg_pairs: Literal["ring", "holdout"] = hp("holdout", "how the domains of a step are paired to train and to test")
    reference: bool = hp(False, "hold out n_meta_test domains even if none is left to train on, as DomainBed does")


class MLDG(Algorithm):
    """For each pair (i, j) of a training domain and a test domain:

    θ' = θ − lr·g/(|g| + ε), g = ∇L_i(θ) + decay·θ;   θ steps along (1/S)·Σ_pairs ∇L_i(θ) + β·∇L_j(θ').
    """

    name = "mldg"
    paper = "Li et al., Learning to Generalize: Meta-Learning for Domain Generalization, AAAI 2018"
    Hparams = Hparams
    needs = Needs(domains=2, single_source="split")

    def __init__(self, task: Task, hp: Any) -> None:
        super().__init__(task, hp)
        if hp.n_meta_test < 1:
            raise InputError(f"n_meta_test must be at least 1, got {hp.n_meta_test}.")

    def update(self, batches: Sequence[Batch]) -> Numbers:
        batches = self.per_domain(batches)
        theta = dict(self.named_parameters())
        for p in theta.values():  # .grad accumulates the gradients at θ and at every θ'
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad.zero_()
        inner = {
            k: torch.empty_like(p, requires_grad=True) for k, p in theta.items()
        }  # θ', filled again for every pair
        losses = []
        for i, j in self.pairs(torch.randperm(len(batches)).tolist()):
            n = min(len(batches[i][0]), len(batches[j][0]))
            with self.stepping(theta, inner):
                train_loss = self.backward(theta, batches[i], n)
            test_loss = self.backward(inner, batches[j], n, self.hp.mldg_beta)
            losses.append(train_loss + self.hp.mldg_beta * test_loss)
        for p in theta.values():
            p.grad.div_(len(batches))  # type: ignore[union-attr]
        self.optimizers["main"].step()
        return fetch_numbers({"loss": torch.stack(losses).sum() / len(batches)} if losses else {"loss": 0.0})

    def pairs(self, order: Sequence[int]) -> list[tuple[int, int]]:
        """Return the (train, test) domains of a step, given a permutation of all domains."""
        if self.hp.mldg_pairs == "ring":
            return list(zip(order, [*order[1:], order[0]]))
        m = self.hp.n_meta_test if self.hp.reference else min(self.hp.n_meta_test, len(order) - 1)
        train, test = order[: max(len(order) - m, 0)], order[-m:]
        return [(i, test[k % len(test)]) for k, i in enumerate(train)]

    def backward(self, theta: Weights, batch: Batch, n: int, factor: float = 1.0) -> Tensor:
        """Return the loss of a domain's first n images at θ, and add ``factor`` times its gradient to .grad."""
        loss = F.cross_entropy(functional_call(self, dict(theta), (batch[0][:n],)), batch[1][:n])
        (factor * loss).backward()
        return loss.detach()

    @contextmanager
    def stepping(self, theta: Weights, inner: Weights) -> Iterator[None]:
        """Fill θ' from the gradient at θ, tensor by tensor while it is computed, so that no copy of it is kept.

        θ and θ' accumulate their gradients in the same tensors.
        """
        hooks = []
        for k, p in theta.items():
            inner[k].grad = p.grad
            hooks.append(p.register_hook(partial(self.inner_step, p, inner[k].detach())))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @torch.no_grad()
    def inner_step(self, p: Tensor, out: Tensor, g: Tensor) -> None:
        """Write into ``out`` the result of the first step of a new Adam from p along g."""
        if self.hp.weight_decay:
            g = g.add(p, alpha=self.hp.weight_decay)
        torch.addcdiv(p, g, torch.abs(g, out=out).add_(ADAM_EPS), value=-self.hp.lr, out=out)
