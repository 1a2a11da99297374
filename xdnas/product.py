"""Batched complex matrix products whose gradients never materialise a conjugate.

In torch's convention the gradient of y = A x is A^H g for x and g x^H for A, with a conjugate in memory each time. Its
conjugate obeys A^T h and h x^T, plain products. So a backward pass takes the conjugate of what arrives and hands on a
lazy conjugate: between two such products the two cancel and no number is touched.
"""

from typing import Any

import torch
from torch import Tensor


class _Product(torch.autograd.Function):
    """y[p] = a[p] x[p]: (P, R, C), (P, C, T) to (P, R, T)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, x: Tensor) -> Tensor:
        return torch.mm(a[0], x[0])[None] if a.shape[0] == 1 else torch.bmm(a, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, x = ctx.saved_tensors
        h = grad.conj()
        by_a = product(h, x.mT).conj() if ctx.needs_input_grad[0] else None
        by_x = product(a.mT, h).conj() if ctx.needs_input_grad[1] else None
        return by_a, by_x

    @staticmethod
    def jvp(ctx: Any, a_tangent: Tensor | None, x_tangent: Tensor | None) -> Tensor:
        a, x = ctx.saved_tensors
        parts = [] if a_tangent is None else [product(a_tangent, x)]
        parts += [] if x_tangent is None else [product(a, x_tangent)]
        return sum(parts[1:], parts[0])


def product(a: Tensor, x: Tensor) -> Tensor:
    """Batched matrix product (P, R, C), (P, C, T) to (P, R, T) of complex tensors."""
    if torch.compiler.is_compiling():
        return torch.bmm(a, x)  # a tracer takes no function with a jvp of its own, and plans its conjugates itself
    result: Tensor = _Product.apply(a, x)  # type: ignore[no-untyped-call]
    return result
