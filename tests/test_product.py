import pytest
import torch

from xdnas.product import product


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("batch", [1, 3])
def test_gradients_to_second_order_forward_and_batched(batch: int) -> None:
    a = torch.randn(batch, 2, 3, dtype=torch.complex128, requires_grad=True)
    x = torch.randn(batch, 3, 4, dtype=torch.complex128, requires_grad=True)
    torch.testing.assert_close(product(a, x), a @ x)
    options = {"check_forward_ad": True, "check_batched_grad": True}
    assert torch.autograd.gradcheck(product, (a, x), **options)
    assert torch.autograd.gradgradcheck(product, (a, x))


def test_gradients_of_conjugated_views() -> None:
    a = torch.randn(2, 2, 3, dtype=torch.complex128, requires_grad=True)
    x = torch.randn(2, 4, 3, dtype=torch.complex128, requires_grad=True)
    ours = torch.autograd.grad(product(a.conj(), x.mH).abs().sum(), (a, x))
    torchs = torch.autograd.grad((a.conj() @ x.mH).abs().sum(), (a, x))
    torch.testing.assert_close(ours, torchs)


def test_between_two_products_no_conjugate_is_carried_out() -> None:
    """What a product hands back is a lazy conjugate of the plain number that the next one wants."""
    a, b = (torch.randn(1, 4, 4, dtype=torch.complex64, requires_grad=True) for _ in range(2))
    x = torch.randn(1, 4, 4, dtype=torch.complex64, requires_grad=True)
    y = product(a, x)
    seen: list[bool] = []
    y.register_hook(lambda g: seen.append(g.is_conj()))
    product(b, y).real.sum().backward()
    assert seen == [True]
