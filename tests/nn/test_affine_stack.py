import pytest
import torch
from torch import Tensor

from itta.errors import InputError
from itta.nn.affine_stack import AffineStack


def naive(stack: AffineStack, h: Tensor) -> Tensor:
    """Compute ReLU(a∘h + b) layer by layer; the last layer has no ReLU."""
    out = h
    for i, (a, b) in enumerate(zip(stack.weight, stack.bias), 1):
        out = a * out + b
        if i < len(stack.weight):
            out = torch.where(out > 0, out, torch.zeros_like(out))
    return out


def shaken(stack: AffineStack) -> AffineStack:
    with torch.no_grad():
        for p in stack.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return stack


@pytest.mark.parametrize("depth", [1, 2, 5, 10])
def test_formula(depth: int) -> None:
    torch.manual_seed(0)
    stack = shaken(AffineStack((7,), depth).double())
    h = torch.randn(20, 7, dtype=torch.float64)
    torch.testing.assert_close(stack(h), naive(stack, h), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("depth", [2, 5])
def test_the_identity_form_adds_what_the_first_relu_took(depth: int) -> None:
    torch.manual_seed(0)
    stack = shaken(AffineStack((7,), depth, identity=True).double())
    h = torch.randn(20, 7, dtype=torch.float64)
    torch.testing.assert_close(stack(h), naive(stack, h) + h.clamp(max=0), rtol=1e-14, atol=1e-14)
    positive = h.abs()
    torch.testing.assert_close(stack(positive), naive(stack, positive), rtol=1e-14, atol=1e-14)  # the paper's f_Θ


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_starts_as_the_identity_for_either_sign(depth: int, dtype: torch.dtype) -> None:
    stack = AffineStack((4, 3, 3), depth, identity=True).to(dtype)
    h = torch.randn(5, 4, 3, 3, dtype=dtype)
    assert torch.equal(stack(h), h)
    shaken(stack).restart()
    assert torch.equal(stack(h), h)


def test_without_identity_the_start_is_a_relu() -> None:
    h = torch.randn(5, 4)
    assert torch.equal(AffineStack((4,), 3)(h), h.clamp(min=0))
    assert torch.equal(AffineStack((4,), 1)(h), h)


def test_every_entry_gets_a_gradient_at_the_start() -> None:
    stack = AffineStack((6,), 5, identity=True)
    stack(torch.rand(3, 6) + 0.1).sum().backward()
    assert all((p.grad != 0).all() for p in stack.parameters())


def test_no_layers() -> None:
    with pytest.raises(InputError, match="at least 1, got 0"):
        AffineStack((4,), 0)
