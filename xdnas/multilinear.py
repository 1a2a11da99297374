"""Automatic differentiation of multilinear maps that bring their own gradients.

A map that is linear in each of its arguments needs two procedures, its value and its gradients. Everything else follows
from them by exchanging arguments: a tangent is the value with one argument exchanged, and the gradients, linear in each
argument again, are differentiated in the same way, to any order. So the two procedures may be written for speed, with
blocks, buffers and sums in place, which plain autograd could not follow.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor

from xdnas.precision import full_precision


class Multilinear(Protocol):
    """A map of tensors that is linear in each."""

    @property
    def value(self) -> Callable[..., Tensor]:
        """(*arguments): the map itself."""
        ...

    @property
    def gradients(self) -> Callable[..., Sequence[Tensor | None]]:
        """(grad, needed, *arguments): the gradients of <grad, value(*arguments)>; None where not `needed`."""
        ...


def evaluate(map: Multilinear, *arguments: Tensor) -> Tensor:
    """The value of a multilinear map, differentiable to any order, in forward mode and under torch.func.

    torch.func.vmap takes the examples one after the other. What is computed stays in the arguments' precision, in the
    backward pass as well, whatever torch.autocast is on around it.
    """
    with full_precision(arguments[0]):
        result: Tensor = _Value.apply(map, *arguments)  # type: ignore[no-untyped-call]
    return result


def refuse_batch(grad: Tensor) -> None:
    """For maps whose gradients work in place, which torch.autograd's own batches of cotangents cannot follow.

    Raises:
        NotImplementedError: grad is such a batch.
    """
    if is_legacy_batchedtensor(grad):
        raise NotImplementedError(
            "XD: gradients cannot be taken for a batch of cotangents at once (is_grads_batched=True, vectorize=True); "
            "use torch.func.jacrev, torch.func.hessian or torch.func.vmap, or leave that option out"
        )


def product(a: Tensor, b: Tensor) -> Tensor:
    """The matrix product a @ b with broadcasting, whose gradients keep its precision too."""
    return a @ b if torch.compiler.is_compiling() else evaluate(_Product(), a, b)


class _Product(NamedTuple):
    def value(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    def gradients(self, grad: Tensor, needed: Sequence[bool], a: Tensor, b: Tensor) -> list[Tensor | None]:
        return [
            (grad @ b.mT).sum_to_size(a.shape) if needed[0] else None,
            (a.mT @ grad).sum_to_size(b.shape) if needed[1] else None,
        ]


def _gradients(
    map: Multilinear, needed: Sequence[bool], grad: Tensor, arguments: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    with full_precision(grad):
        result: tuple[Tensor | None, ...] = _Gradients.apply(map, tuple(needed), grad, *arguments)  # type: ignore[no-untyped-call]
    return result


def _exchanged(arguments: Sequence[Tensor], i: int, other: Tensor) -> list[Tensor]:
    return [*arguments[:i], other, *arguments[i + 1 :]]


def _given(tensors: Sequence[Tensor | None]) -> list[tuple[int, Tensor]]:
    return [(i, t) for i, t in enumerate(tensors) if t is not None]


def _sum(parts: Sequence[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return sum(present[1:], present[0]) if present else None


class _Value(torch.autograd.Function):
    @staticmethod
    def forward(map: Multilinear, *arguments: Tensor) -> Tensor:
        return map.value(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.map, *arguments = inputs
        ctx.save_for_backward(*arguments)
        ctx.save_for_forward(*arguments)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        arguments = ctx.saved_tensors
        if grad is None:
            return (None,) * (1 + len(arguments))
        return None, *_gradients(ctx.map, ctx.needs_input_grad[1:], grad, arguments)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> Tensor | None:
        arguments = ctx.saved_tensors
        return _sum([evaluate(ctx.map, *_exchanged(arguments, i, t)) for i, t in _given(tangents)])

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[int | None], map: Multilinear, *arguments: Tensor) -> tuple[Tensor, int]:
        each = [evaluate(map, *chosen) for chosen in _unbatched(info.batch_size, in_dims[1:], arguments)]
        return torch.stack(each), 0


class _Gradients(torch.autograd.Function):
    @staticmethod
    def forward(
        map: Multilinear, needed: tuple[bool, ...], grad: Tensor, *arguments: Tensor
    ) -> tuple[Tensor | None, ...]:
        return tuple(map.gradients(grad, needed, *arguments))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
        ctx.map, ctx.needed, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        grad, *arguments = ctx.saved_tensors
        by_grad: list[Tensor | None] = []
        rows: list[tuple[Tensor | None, ...]] = []
        for i, u in _given(cotangents):
            chosen = _exchanged(arguments, i, u)
            if ctx.needs_input_grad[2]:
                by_grad.append(evaluate(ctx.map, *chosen))
            needed = _all_but(i, ctx.needs_input_grad[3:])
            if any(needed):
                rows.append(_gradients(ctx.map, needed, grad, chosen))
        by_arguments = [_sum([row[j] for row in rows]) for j in range(len(arguments))]
        return None, None, _sum(by_grad), *by_arguments

    @staticmethod
    def jvp(
        ctx: Any, _: None, __: None, grad_tangent: Tensor | None, *tangents: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        grad, *arguments = ctx.saved_tensors
        rows = [
            _gradients(ctx.map, _all_but(i, ctx.needed), grad, _exchanged(arguments, i, t)) for i, t in _given(tangents)
        ]
        if grad_tangent is not None:
            rows.append(_gradients(ctx.map, ctx.needed, grad_tangent, arguments))
        sums = [_sum([row[j] for row in rows]) for j in range(len(arguments))]
        # what is constant has a tangent of zeros; autograd takes None for outputs alone that are None
        return tuple(
            torch.zeros_like(a) if need and s is None else s
            for a, need, s in zip(arguments, ctx.needed, sums, strict=True)
        )

    @staticmethod
    def vmap(
        info: Any, in_dims: Sequence[int | None], map: Multilinear, needed: tuple[bool, ...], *tensors: Tensor
    ) -> tuple[tuple[Tensor | None, ...], tuple[int | None, ...]]:
        rows = [
            _gradients(map, needed, chosen[0], chosen[1:])
            for chosen in _unbatched(info.batch_size, in_dims[2:], tensors)
        ]
        stacked = [None if column[0] is None else torch.stack(column) for column in zip(*rows, strict=True)]
        return tuple(stacked), tuple(None if s is None else 0 for s in stacked)


def _all_but(i: int, needed: Sequence[bool]) -> list[bool]:
    return [need and j != i for j, need in enumerate(needed)]


def _unbatched(count: int, in_dims: Sequence[int | None], tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """The tensors of each example of a batch that vmap keeps along `in_dims`."""
    pairs = list(zip(in_dims, tensors, strict=True))
    return [[t if d is None else t.select(d, k) for d, t in pairs] for k in range(count)]
