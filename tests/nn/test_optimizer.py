import pytest
import torch

from itta.nn.optimizer import load_optimizer_tensors, optimizer_tensors, with_prefix, without_prefix

MAKERS = {
    "adam": lambda ps: torch.optim.Adam(ps, lr=0.1),
    "fused adam": lambda ps: torch.optim.Adam(ps, lr=0.1, weight_decay=0.1, fused=True),
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.1),
    "momentum": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9),
}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_restored_optimizer_goes_on_bit_for_bit(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    start = torch.randn(3, 4, dtype=dtype)

    def step(p: torch.Tensor, optimizer: torch.optim.Optimizer, i: int) -> None:
        p.grad = torch.sin(p.detach() + i)
        optimizer.step()

    p = start.clone().requires_grad_()
    optimizer = MAKERS[kind]([p])
    for i in range(3):
        step(p, optimizer, i)
    q = p.detach().clone().requires_grad_()
    other = MAKERS[kind]([q])
    saved = without_prefix("opt.", with_prefix("opt.", optimizer_tensors(optimizer)) | {"rest": torch.ones(1)})
    load_optimizer_tensors(other, saved)
    for i in range(3, 6):
        step(p, optimizer, i)
        step(q, other, i)
    assert torch.equal(p, q)
    assert not torch.equal(p, start)
