"""A bank of source styles, so that a batch of one image has somebody to mix with.

Collected from the source domains when training ends and stored with the model: for each mixing point the mean and
deviation of every channel, one row per image, with the domain each row came from.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

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
        """Draw as `draw_mix` does, with styles of the bank in place of partners from the batch.

        λ is folded to at most ½: Beta(0.1, 0.1) is often 1 but for rounding, and a lone image would then see no second
        view at all.
        """
        blocks = tuple(self.mean)
        block = blocks[int(torch.randint(len(blocks), (), generator=generator))]
        rows = torch.randint(len(self), (n,), generator=generator)
        lam = draw_beta(n, alpha, generator)
        lam = torch.minimum(lam, 1 - lam)
        return MixDraw(block, lam, style=(self.mean[block][rows], self.std[block][rows]))

    def tensors(self) -> dict[str, Tensor]:
        """Flat names for a file."""
        named = {"domain": self.domain}
        for block in self.mean:
            named |= {f"mean.{block}": self.mean[block], f"std.{block}": self.std[block]}
        return named

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor], domains: Sequence[str]) -> "StyleBank":
        def of(kind: str) -> dict[str, Tensor]:
            return {k.removeprefix(f"{kind}."): v for k, v in tensors.items() if k.startswith(f"{kind}.")}

        return StyleBank(of("mean"), of("std"), tensors["domain"], tuple(domains))


@torch.no_grad()
def collect_styles(backbone: Backbone, images: Mapping[str, Iterable[Tensor]], blocks: tuple[str, ...]) -> StyleBank:
    """Run each domain's image batches up to the last mixing point and keep every image's style."""
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
