"""A bank of source styles: a batch of one image needs other styles to mix with.

It is collected from the source domains at the end of training and stored with the model. It holds the mean and the
deviation of every channel at each mixing point, one row per image, and the domain of each row.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from itta.errors import InputError
from itta.nn.backbone import Backbone, evaluating
from itta.nn.style_mixing import MixDraw, draw_beta, style


@dataclass(frozen=True)
class StyleBank:
    mean: Mapping[str, Tensor]  # block -> [K, C]
    std: Mapping[str, Tensor]
    domain: Tensor  # [K], index into `domains`
    domains: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.domain)

    def draw(self, n: int, alpha: float, generator: torch.Generator | None = None) -> MixDraw:
        """Draw as `draw_mix` does, but with styles of the bank instead of partners from the batch.

        λ is folded to at most ½: Beta(0.1, 0.1) often draws a λ near 1, and then both views of an image would be equal.
        """
        blocks = tuple(self.mean)
        block = blocks[int(torch.randint(len(blocks), (), generator=generator))]
        rows = torch.randint(len(self), (n,), generator=generator)
        lam = draw_beta(n, alpha, generator)
        lam = torch.minimum(lam, 1 - lam)
        return MixDraw(block, lam, style=(self.mean[block][rows], self.std[block][rows]))

    def tensors(self) -> dict[str, Tensor]:
        """Return the bank as tensors by name, for a file."""
        named = {"domain": self.domain}
        for block in self.mean:
            named |= {f"mean.{block}": self.mean[block], f"std.{block}": self.std[block]}
        return named

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor], domains: Sequence[str]) -> "StyleBank":
        """Make a bank from the tensors that `tensors` returned."""

        def of(kind: str) -> dict[str, Tensor]:
            return {k.removeprefix(f"{kind}."): v for k, v in tensors.items() if k.startswith(f"{kind}.")}

        bank = StyleBank(of("mean"), of("std"), tensors["domain"], tuple(domains))
        bank.check()
        return bank

    def check(self) -> None:
        """Refuse a bank whose tensors do not belong together."""
        shapes = [t.shape for t in (*self.mean.values(), *self.std.values())]
        whole = self.domain.ndim == 1 and not self.domain.is_floating_point() and len(self) > 0
        if not whole or not shapes or self.mean.keys() != self.std.keys():
            raise InputError("the style bank of the model is incomplete")
        if any(len(shape) != 2 or shape[0] != len(self) for shape in shapes):
            raise InputError(f"the style bank of the model has {len(self)} rows, and its tensors have another number")
        if not 0 <= int(self.domain.min()) <= int(self.domain.max()) < len(self.domains):
            raise InputError("the style bank of the model names domains that it does not have")


@torch.no_grad()
def collect_styles(backbone: Backbone, images: Mapping[str, Iterable[Tensor]], blocks: tuple[str, ...]) -> StyleBank:
    """Run the image batches of each domain up to the last mixing point, and keep the style of every image."""
    mean: dict[str, list[Tensor]] = {b: [] for b in blocks}
    std: dict[str, list[Tensor]] = {b: [] for b in blocks}
    domain: list[int] = []

    def keep_style(block: str, z: Tensor) -> Tensor:
        if block in mean:
            mu, sigma = style(z)
            mean[block].append(mu.flatten(1).cpu())
            std[block].append(sigma.flatten(1).cpu())
        return z

    last = max(blocks, key=backbone.index)
    with evaluating(backbone):
        for i, batches in enumerate(images.values()):
            for x in batches:
                keep_style(last, backbone.until(last, x, keep_style))
                domain += [i] * len(x)
    return StyleBank(
        {b: torch.cat(rows) for b, rows in mean.items()},
        {b: torch.cat(rows) for b, rows in std.items()},
        torch.tensor(domain),
        tuple(images),
    )
