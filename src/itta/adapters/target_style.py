"""The style of a target's images so far, the step that gives them the sources' style, and changes of domain.

The style of an image is the mean and the deviation of each channel after an early block (MixStyle, Zhou et al., ICLR
2021). Images of one domain have similar styles. So a jump of the style is a sign of a new domain.
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from itta.nn.affine_stack import AffineStack, channel_shape
from itta.nn.optimizer import with_prefix, without_prefix
from itta.nn.style_bank import StyleBank
from itta.nn.style_mixing import style

WINDOW = 16  # latest images that are compared with the images before them
LEAST = 32  # images before the window that a comparison needs


class TargetStyle:
    """f_Θ(z) = a∘z + b, per channel, with a = (σ_S/σ_T)^λ and b = μ_T + λ·(μ_S − μ_T) − a∘μ_T.

    (μ_S, σ_S) is the mean style of the sources, (μ_T, σ_T) that of the target's images so far, and λ the strength.
    Older images fade: the mean is taken over about ``memory`` images, and starts with ``prior`` images of source style.
    """

    def __init__(self, bank: StyleBank, blocks: Iterable[str], like: Tensor) -> None:
        styles = {b: torch.stack([bank.mean[b], bank.std[b]], 1) for b in blocks}  # [K, 2, C]
        self.source = {block: s.to(like).mean(0) for block, s in styles.items()}  # [2, C]
        self.first = next(iter(styles))
        self.change = StyleChange(variance_within(flat_styles(styles[self.first]), bank.domain))
        self.reset()

    def reset(self) -> None:
        self.forget()
        self.change.reset()

    def forget(self) -> None:
        """Forget the target's style, and keep the watch for changes."""
        self.sums = {block: torch.zeros_like(s) for block, s in self.source.items()}
        self.weight = 0.0  # images that the sums hold; old ones count less

    def fade(self, images: int, memory: int) -> float:
        """Make room for new images; return the share of the old sums that stays."""
        kept = (1 - 1 / memory) ** images
        self.weight = kept * self.weight + images
        return kept

    def add(self, block: str, styles: Tensor, kept: float) -> None:
        """Take in the styles of a batch, [B, 2, C]."""
        self.sums[block] = kept * self.sums[block] + styles.sum(0)

    def theta(self, block: str, prior: float, strength: float) -> tuple[Tensor, Tensor]:
        """Return a and b of f_Θ after a block, [C] each."""
        mean, std = (self.sums[block] + prior * self.source[block]) / (self.weight + prior)
        source_mean, source_std = self.source[block]
        a = (source_std / std) ** strength
        return a, mean + strength * (source_mean - mean) - a * mean

    def modules(self, shapes: Mapping[str, tuple[int, ...]], prior: float, strength: float) -> nn.ModuleDict:
        """Return the present f_Θ after each block as a module; ``shapes`` are those of the blocks' outputs."""
        stacks = {block: AffineStack(channel_shape(shapes[block]), depth=1) for block in self.source}
        for block, stack in stacks.items():
            for p, value in zip((stack.weight, stack.bias), self.theta(block, prior, strength)):
                p.data = value.view_as(p).clone()
        return nn.ModuleDict(stacks)

    def move(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Move all tensors that meet images; the watch for changes stays on the CPU."""
        self.source, self.sums = ({k: fn(v) for k, v in of.items()} for of in (self.source, self.sums))

    def state_dict(self) -> dict[str, Tensor]:
        sums = with_prefix("sums.", {k: v.clone() for k, v in self.sums.items()})
        change = with_prefix("change.", self.change.state_dict())
        return {**sums, **change, "weight": torch.tensor(self.weight, dtype=torch.double)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.sums = {k: v.to(self.source[k], copy=True) for k, v in without_prefix("sums.", state).items()}
        self.change.load_state_dict(without_prefix("change.", state))
        self.weight = float(state["weight"])


class StyleChange:
    """Notice a jump of the style: the latest images against the images before them, since the last jump.

    With m and v the mean and the variance of the style over the images before, v_S its variance within the source
    domains, and w the mean of the latest 16 images, the jump is the mean over channels of (w − m)²/max(v, v_S).
    """

    def __init__(self, within: Tensor) -> None:
        self.within = within.detach().double().cpu().clamp(min=1e-12).numpy()  # v_S, [2·C]
        self.reset()

    def reset(self) -> None:
        zeros = np.zeros_like(self.within)
        self.images, self.sum, self.squares, self.latest = 0, zeros, zeros, np.zeros((0, len(zeros)))

    def notice(self, styles: Tensor, limit: float) -> bool:
        """Take in the styles of a batch, [B, 2, C]; tell whether they jump by more than the limit."""
        rows, found = flat_styles(styles).numpy(), False
        while len(rows) > 0:
            over = (self.jumps(rows) > limit).nonzero()[0]
            n = int(over[0]) + 1 if len(over) else len(rows)
            self.add(rows[:n])
            rows = rows[n:]
            if len(over):
                self.images, self.sum, self.squares = 0, np.zeros_like(self.sum), np.zeros_like(self.sum)
                found = True
        return found

    def add(self, rows: np.ndarray) -> None:
        """Move the window: its oldest images join the images before."""
        pool = np.concatenate([self.latest, rows])
        left, self.latest = pool[: max(0, len(pool) - WINDOW)], pool[-WINDOW:]
        self.images, self.sum = self.images + len(left), self.sum + left.sum(0)
        self.squares = self.squares + (left**2).sum(0)

    def jumps(self, rows: np.ndarray) -> np.ndarray:
        """Return the size of the jump at each of the next images, [B]; 0 while the images before are few."""
        pool = np.concatenate([np.zeros_like(rows[:1]), self.latest, rows])
        sums, squares = pool.cumsum(0), (pool**2).cumsum(0)
        end = np.arange(len(self.latest) + 1, len(pool))
        start = np.maximum(end - WINDOW, 0)  # of the window
        before = np.maximum(self.images + start, 1)[:, None]
        mean = (self.sum + sums[start]) / before
        variance = np.maximum((self.squares + squares[start]) / before - mean**2, self.within)
        latest = (sums[end] - sums[start]) / (end - start)[:, None]
        return np.where(self.images + start < LEAST, 0.0, ((latest - mean) ** 2 / variance).mean(1))

    def state_dict(self) -> dict[str, Tensor]:
        names = ("sum", "squares", "latest")
        return {"images": torch.tensor(self.images)} | {k: torch.from_numpy(getattr(self, k).copy()) for k in names}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.images = int(state["images"])
        self.sum, self.squares, self.latest = (state[name].numpy().copy() for name in ("sum", "squares", "latest"))


def append_restyled(z: Tensor, second: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return torch.cat([z, second·a + b]) without tensors in between."""
    n, order = len(z), torch.contiguous_format
    if z.ndim == 4 and z.is_contiguous(memory_format=torch.channels_last):
        order = torch.channels_last
    shape = (n + len(second), *z.shape[1:])
    found = torch.empty(shape, dtype=z.dtype, device=z.device, memory_format=order)
    found[:n].copy_(z)
    torch.addcmul(b, second, a, out=found[n:])
    return found


def styles_of(z: Tensor) -> Tensor:
    """Return mean and deviation of each channel, [B, 2, C]."""
    return torch.stack([s.flatten(1) for s in style(z)], 1)


def flat_styles(styles: Tensor) -> Tensor:
    """Lay out means and log-deviations, [B, 2, C] to [B, 2·C]: a doubled contrast is the same step at any contrast."""
    mean, std = styles.detach().double().cpu().unbind(1)
    return torch.cat([mean, std.log()], 1)


def variance_within(rows: Tensor, group: Tensor) -> Tensor:
    """Return the variance of each column of the rows, [K, D], around the means of their groups, [K]; [D].

    >>> variance_within(torch.tensor([[0.0], [2.0], [10.0], [12.0]]), torch.tensor([0, 0, 1, 1]))
    tensor([1.])
    """
    centred = torch.cat([rows[group == g] - rows[group == g].mean(0) for g in group.unique()])
    return centred.square().mean(0)
