import torch

from itta.nn.small_cnn import SmallCNN
from itta.nn.style_bank import StyleBank, collect_styles

BLOCKS = ("block1", "block2")
IMAGES = {
    "warm": [torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(i)) for i in (1, 2)],
    "cold": [torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(3)) * 0.2],
}


def collected() -> tuple[SmallCNN, StyleBank]:
    torch.manual_seed(0)
    backbone = SmallCNN(8)
    return backbone, collect_styles(backbone, IMAGES, BLOCKS)


def test_rows_are_the_statistics_of_single_images() -> None:
    backbone, bank = collected()
    images = [x for batches in IMAGES.values() for batch in batches for x in batch]
    assert len(bank) == len(images) == 8
    assert bank.domain.tolist() == [0] * 6 + [1] * 2
    assert bank.domains == ("warm", "cold")
    for row, x in enumerate(images):
        with torch.no_grad():
            for block in BLOCKS:
                z = backbone.until(block, x[None])[0].flatten(1)  # [C, positions]
                mean = z.sum(1) / z.shape[1]
                var = (z - mean[:, None]).square().sum(1) / (z.shape[1] - 1)
                torch.testing.assert_close(bank.mean[block][row], mean, rtol=1e-4, atol=1e-5)
                torch.testing.assert_close(bank.std[block][row], (var + 1e-6).sqrt(), rtol=1e-4, atol=1e-5)


def test_collecting_leaves_the_mode_alone() -> None:
    backbone = SmallCNN(8).train()
    collect_styles(backbone, IMAGES, BLOCKS)
    assert backbone.training


def test_draws_use_rows_of_the_bank() -> None:
    _, bank = collected()
    generator = torch.Generator().manual_seed(0)
    seen, blocks = set(), set()
    for _ in range(20):
        draw = bank.draw(4, 0.1, generator)
        blocks.add(draw.block)
        assert draw.partner is None
        assert draw.lam.shape == (4,)
        mean, std = draw.style
        for m, s in zip(mean, std):
            (row,) = {r for r in range(len(bank)) if torch.equal(bank.mean[draw.block][r], m)}
            assert torch.equal(bank.std[draw.block][row], s)
            seen.add(row)
    assert seen == set(range(8))
    assert blocks == set(BLOCKS)


def test_draws_are_a_function_of_the_generator() -> None:
    _, bank = collected()
    a, b = (bank.draw(4, 0.1, torch.Generator().manual_seed(5)) for _ in range(2))
    assert a.block == b.block
    assert torch.equal(a.lam, b.lam)
    assert torch.equal(a.style[0], b.style[0])


def test_round_trip_through_tensors() -> None:
    _, bank = collected()
    again = StyleBank.from_tensors(bank.tensors(), ["warm", "cold"])
    assert again.domains == bank.domains
    assert torch.equal(again.domain, bank.domain)
    for block in BLOCKS:
        assert torch.equal(again.mean[block], bank.mean[block])
        assert torch.equal(again.std[block], bank.std[block])
    assert tuple(again.mean) == BLOCKS
