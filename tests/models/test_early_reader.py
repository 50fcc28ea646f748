"""The early reader: it reads the last block but one, without a second pass, and joins the answers as a sign only."""

from collections.abc import Callable

import torch

from itta.adapters import adapt
from itta.algorithms import Algorithm
from itta.algorithms.base import Batch
from itta.estimators import Witness
from itta.estimators.statistics import STATISTICS
from itta.models.early_reader import EarlyFeatures
from itta.models.source_statistics import fit_early_reader


def test_it_reads_the_last_block_but_one(
    trained: Callable[..., Algorithm], toy_batches: Callable[..., list[Batch]]
) -> None:
    model = trained("erm", steps=10, lr=1e-2).eval()
    batches = toy_batches(3, 80)
    reader = fit_early_reader(model, batches)
    assert reader is not None
    x, y = batches[0]
    maps: dict[str, torch.Tensor] = {}

    def note(block: str, z: torch.Tensor) -> torch.Tensor:
        maps[block] = z
        return z

    with torch.no_grad():
        model.features(x, note)
    block = model.backbone.block_names[-2]
    scores = maps[block].mean((2, 3)) @ reader.weight.T + reader.bias
    assert float((scores.argmax(1) == y).float().mean()) > 0.6  # it learned something

    witness = Witness(model, adapt(model, "itta+"), reader=reader)
    logits = torch.cat([witness(part) for part in x.split(16)])
    evidence = witness.evidence()
    torch.testing.assert_close(evidence.early, scores, rtol=1e-4, atol=1e-4)
    assert "early" not in evidence.opinions  # a sign, and no answer
    plain = adapt(model, "itta+")
    assert torch.equal(logits, torch.cat([plain(part) for part in x.split(16)]))
    part = evidence.part(torch.arange(5))
    assert part.early is not None
    assert len(part.early) == 5
    distance = STATISTICS["distance of early"](evidence, 0.0)
    assert distance is not None
    assert 0 < distance < 1


def test_a_network_of_one_block_has_no_early_features(trained: Callable[..., Algorithm]) -> None:
    backbone = trained("erm").backbone
    early = EarlyFeatures(backbone)
    early.block = None
    early("block1", torch.ones(2, 3, 4, 4))
    assert early.latest is None
    tokens = EarlyFeatures(backbone)
    tokens(str(tokens.block), torch.ones(2, 5, 7))
    assert tokens.latest is not None
    assert tokens.latest.shape == (2, 7)
