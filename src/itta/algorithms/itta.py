"""ITTA, the training half. Improved Test-Time Adaptation for Domain Generalization.
Chen, Zhang, Song, Shan, Liu, CVPR 2023. https://arxiv.org/abs/2304.04494

Two things differ from the paper. The gradient of the weight sub-network f_w is exact but needs no second-order
backpropagation: one Jacobian-vector product, then a derivative through f_w alone. And by default both updates start
from the same point (``update_order="shared"``), which saves the second pass over the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from itta.algorithms import consistency
from itta.algorithms.base import Algorithm, Batch, Needs, Numbers, Task
from itta.algorithms.consistency import draw_view
from itta.functional.gradients import Alignment, alignment, alignment_statistics
from itta.functional.jvp import Tape
from itta.functional.transfers import fetch, fetch_numbers
from itta.hparams import hp
from itta.nn.affine_stack import AffineStack
from itta.nn.views import two_views

Losses = dict[str, Tensor]  # by name, on the device that computed them


@dataclass(frozen=True)
class Hparams(consistency.Hparams):
    fw_depth: int = hp(10, "layers of the weight sub-network f_w")
    fw_lr_scale: float = hp(0.1, "learning rate of f_w, as a share of lr")
    update_order: Literal["shared", "paper"] = hp(
        "shared", "shared: θ, φ and w step from one pass; paper: w steps after θ and φ, from a second pass"
    )
    align_every: int = hp(1, "update f_w once in this number of steps")
    align_blocks: Literal["all", "last"] = hp("all", "align the gradients of all blocks, or of the last block")
    difference: Literal["z-z'", "z'-z"] = hp("z-z'", "the argument of f_w; the released code has z' − z")


PRESETS: dict[str, dict[str, object]] = {
    "paper": {},
    "released": {"update_order": "paper", "difference": "z'-z"},
}


class ITTA(Algorithm):
    """z, z' = f_θ(x); for z' styles are mixed after one of the first two blocks.

    L_main  = CE(f_φ(z), y) + CE(f_φ(z'), y)
    L_wcont = mean(f_w(z − z')²)                                              (Eq. 1)
    θ, φ ← step on L_main + α·L_wcont                                         (Eq. 2)
    w    ← step on L_align = mean((ĝ_main − ĝ_wcont)²), ĝ = (g − E g)/σ_g      (Eq. 5)
    """

    name = "itta"
    paper = "Chen et al., Improved Test-Time Adaptation for Domain Generalization, CVPR 2023"
    Hparams = Hparams
    needs = Needs(batch=2, networks=("f_w",), second_order="f_w")

    step: Tensor

    def __init__(self, task: Task, hp: Any) -> None:
        super().__init__(task, hp)
        self.f_w = AffineStack((self.backbone.dim,), hp.fw_depth)
        self.add_optimizer("f_w", self.f_w.parameters(), hp.fw_lr_scale * hp.lr)
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def update(self, batches: Sequence[Batch]) -> Numbers:
        x, y = self.gather(batches)
        aligns = int(self.step) % self.hp.align_every == 0
        self.step += 1
        if aligns and self.hp.update_order == "shared":
            return self.update_together(self.run(x, y))
        run = self.run(x, y)
        self.optimizers["main"].zero_grad()
        (run.main + self.hp.alpha * run.wcont).backward(inputs=self.main_parameters())  # Eq. 2
        self.optimizers["main"].step()
        losses = run.losses()
        self.optimizers["main"].zero_grad()
        del run  # two tapes at once would double the memory of the activations
        return self.align(self.run(x, y), losses) if aligns else fetch_numbers(losses)

    def run(self, x: Tensor, y: Tensor) -> "Run":
        """Compute both losses of a batch, and record the pass for the alignment step."""
        before_last = self.backbone.block_names[-2]
        run = Run(Tape())

        def note_cut(block: str, z: Tensor) -> Tensor:
            if block == before_last:
                run.cut = z
            return z

        with run.tape:
            z, z_aug = two_views(lambda after: self.features(x, after), draw_view(self, len(x)), note_cut)
            run.h = z - z_aug if self.hp.difference == "z-z'" else z_aug - z
        run.main = F.cross_entropy(self.head(z), y) + F.cross_entropy(self.head(z_aug), y)
        run.wcont = self.f_w(run.h).square().mean()  # Eq. 1
        return run

    def update_together(self, run: "Run") -> Numbers:
        """Step θ, φ and w from one pass. Both updates use the same two gradients."""
        aligned, early = self.aligned_parameters(), self.early_parameters()
        cut = [run.cut] if early else []
        head = list(self.head.parameters())
        self.optimizers["main"].zero_grad()  # the gradients of the last step would add to the peak of memory
        on_main = grad(run.main, [*aligned, *cut, *head], keep_graph=True)
        on_wcont = grad(run.wcont, [*aligned, *cut], keep_graph=bool(early))
        n = len(aligned)
        if early:
            at_cut = on_main[n].add_(on_wcont[n], alpha=self.hp.alpha)
            set_gradients(early, torch.autograd.grad(run.cut, early, at_cut))
        set_gradients(head, on_main[n + len(cut) :])

        g_main, g_wcont = on_main[:n], on_wcont[:n]
        del on_main, on_wcont  # or the lists would keep the tensors that v replaces below
        logs, found = fetch_alignment(run.losses(), g_main, g_wcont)
        for i, (p, m, w) in enumerate(zip(aligned, g_main, g_wcont)):
            if found is not None:  # v replaces g_wcont: tensors of θ's size take most of a step's memory
                g_wcont[i] = found.direction(m, w)
            p.grad = m.add_(w, alpha=self.hp.alpha)  # Eq. 2
        logs |= self.step_w(run, found, g_wcont)  # before θ changes: the tape refers to its present values
        self.optimizers["main"].step()
        return logs

    def align(self, run: "Run", losses: Losses | None = None) -> Numbers:
        """Step w alone. ``losses`` are more values to log."""
        aligned = self.aligned_parameters()
        g_main = grad(run.main, aligned, keep_graph=True)
        g_wcont = grad(run.wcont, aligned)
        logs, found = fetch_alignment(losses or {}, g_main, g_wcont)
        if found is not None:
            for i, m in enumerate(g_main):
                g_wcont[i] = found.direction(m, g_wcont[i])
        del g_main
        return logs | self.step_w(run, found, g_wcont)

    def step_w(self, run: "Run", found: Alignment | None, v: Sequence[Tensor]) -> Numbers:
        """Step w on Eq. 5, given v = ∂L_align/∂g_wcont.

        With u(h, w) = ∂L_wcont/∂h and J = ∂h/∂θ, g_wcont = Jᵀu. Hence ∂L_align/∂w = ∂⟨J v, u(h, w)⟩/∂w, J v constant.
        """
        if found is None:  # a gradient is zero: there is no direction to align
            return {"align": 0.0, "cosine": 0.0}
        j_v = run.tape.jvp(dict(zip(self.aligned_parameters(), v)), run.h)
        set_gradients(list(self.f_w.parameters()), w_gradient(self.f_w, run.h, j_v))
        self.optimizers["f_w"].step()
        return {"align": float(found.loss), "cosine": float(found.cosine)}

    def main_parameters(self) -> list[Tensor]:
        return [*self.backbone.parameters(), *self.head.parameters()]

    def aligned_parameters(self) -> list[Tensor]:
        """Return the part of θ with aligned gradients."""
        aligned = self.backbone if self.hp.align_blocks == "all" else self.backbone.last_block
        return list(aligned.parameters())

    def early_parameters(self) -> list[Tensor]:
        """Return the rest of θ."""
        aligned = {id(p) for p in self.aligned_parameters()}
        return [p for p in self.backbone.parameters() if id(p) not in aligned]


@dataclass
class Run:
    """The tape of one pass, and its losses."""

    tape: Tape
    h: Tensor = field(init=False)  # z − z'
    cut: Tensor = field(init=False)  # the last block's input
    main: Tensor = field(init=False)
    wcont: Tensor = field(init=False)

    def losses(self) -> Losses:
        return {"loss": self.main.detach(), "consistency": self.wcont.detach()}


def fetch_alignment(
    losses: Losses, g_main: Sequence[Tensor], g_wcont: Sequence[Tensor]
) -> tuple[Numbers, Alignment | None]:
    """Return the losses as numbers, and the alignment of two gradients. The host waits for the device once."""
    statistics, *values = fetch(alignment_statistics(g_main, g_wcont), *losses.values())
    return dict(zip(losses, map(float, values))), alignment(g_main, g_wcont, statistics)


def grad(loss: Tensor, inputs: Sequence[Tensor], keep_graph: bool = False) -> list[Tensor]:
    return list(torch.autograd.grad(loss, inputs, retain_graph=keep_graph, materialize_grads=True))


def set_gradients(parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    for p, g in zip(parameters, gradients):
        p.grad = g


def w_gradient(f_w: AffineStack, h: Tensor, j_v: Tensor) -> list[Tensor]:
    """Return ∂⟨j_v, u(h, w)⟩/∂w with u = ∂ mean(f_w(h)²)/∂h, a second derivative of f_w alone."""
    h = h.detach().requires_grad_()
    (u,) = torch.autograd.grad(f_w(h).square().mean(), h, create_graph=True)
    return grad((u * j_v).sum(), list(f_w.parameters()))
