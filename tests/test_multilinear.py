"""Maps that bring their own gradients are differentiated as plain products are: to any order, in every mode."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from xdnas.mixing import Mixing
from xdnas.multilinear import evaluate

close = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)


class Contraction:
    """The sum over a and b of A[i, a] B[a, b, j] C[b, i]; it notes which gradients it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[bool, ...]] = []

    def value(self, *arguments: Tensor) -> Tensor:
        a, b, c = _spread(*arguments)
        return (a * b * c).sum((1, 2))

    def gradients(self, grad: Tensor, needed: Sequence[bool], *arguments: Tensor) -> list[Tensor | None]:
        self.asked.append(tuple(needed))
        (a, b, c), grad = _spread(*arguments), grad[:, None, None]
        by_a = (grad * b * c).sum((2, 3)) if needed[0] else None
        by_b = (grad * a * c).sum(0) if needed[1] else None
        return [by_a, by_b, (grad * a * b).sum((1, 3)).t() if needed[2] else None]


def _spread(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All as (i, a, b, j), of size 1 where they do not vary."""
    return a[:, :, None, None], b[None], c.t()[:, None, :, None]


def plain(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return torch.einsum("ia,abj,bi->ij", a, b, c)


def plain_mixing(x: Tensor, side: Tensor, taps: Tensor) -> Tensor:
    """Two groups of one channel each: a complex product at every frequency."""
    d = torch.einsum("lfk,lkp->lfp", side.expand(taps.shape[0], -1, -1), taps).reshape(-1, 2, 1, taps.shape[2])
    re, im = x[:, 0] * d[:, 0] - x[:, 1] * d[:, 1], x[:, 0] * d[:, 1] + x[:, 1] * d[:, 0]
    return torch.stack((re, im), 1)


Case = tuple[Any, Callable[..., Tensor], list[tuple[int, ...]]]
MAPS: list[Case] = [
    (Contraction(), plain, [(3, 2), (2, 3, 2), (3, 3)]),
    (Mixing(2), plain_mixing, [(2, 2, 1, 2), (1, 2, 2), (2, 2, 2)]),
]
BATCHED = [(0, None, None), (None, 1, None), (None, None, 0), (None, 0, 1), (0, 1, None), (1, None, 0), (1, 1, 1)]
each_map = pytest.mark.parametrize("case", MAPS, ids=["contraction", "mixing"])


def draw(shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@each_map
def test_numeric_derivatives_of_both_orders(case: Case) -> None:
    map, _, shapes = case
    assert gradcheck(partial(evaluate, map), draw(shapes), check_forward_ad=True)
    assert gradgradcheck(partial(evaluate, map), draw(shapes), check_fwd_over_rev=True)


@each_map
@pytest.mark.parametrize("in_dims", BATCHED)
def test_many_at_a_time(case: Case, in_dims: tuple[int | None, ...]) -> None:
    """Values, gradients and tangents of a batch that lies along any dimension of some arguments."""
    map, twin, shapes = case
    own = partial(evaluate, map)
    batched = draw([s if d is None else (*s[:d], 2, *s[d:]) for s, d in zip(shapes, in_dims, strict=True)])
    cotangent, tangents = torch.randn_like(twin(*draw(shapes))), tuple(draw(shapes))

    def of_each(f: Callable[..., Tensor], *arguments: Tensor) -> Any:
        value, back = vjp(f, *arguments)[:2]
        return value, back(cotangent), jvp(f, arguments, tangents)[1], grad(lambda *a: f(*a).sum(), 1)(*arguments)

    close(vmap(partial(of_each, own), in_dims)(*batched), vmap(partial(of_each, twin), in_dims)(*batched))
    each = zip(*([t] * 2 if d is None else t.unbind(d) for t, d in zip(batched, in_dims, strict=True)), strict=True)
    close(vmap(own, in_dims)(*batched), torch.stack([twin(*arguments) for arguments in each]))
    first = torch.autograd.grad(vmap(own, in_dims)(*batched).pow(2).sum(), batched)
    close(first, torch.autograd.grad(vmap(twin, in_dims)(*batched).pow(2).sum(), batched))


@each_map
@pytest.mark.parametrize("argnums", [1, (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("transform", [jacrev, jacfwd, hessian, lambda f, argnums: jacfwd(jacrev(f, argnums), 0)])
def test_whole_derivatives(case: Case, transform: Callable[..., Any], argnums: int | tuple[int, ...]) -> None:
    map, twin, shapes = case
    arguments = draw(shapes)
    close(transform(partial(evaluate, map), argnums)(*arguments), transform(twin, argnums)(*arguments))


@each_map
def test_third_derivatives(case: Case) -> None:
    map, twin, shapes = case
    arguments, directions = draw(shapes), [draw(shapes) for _ in range(2)]

    def third(f: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        value = f(*arguments).sin().sum()
        for along in directions:
            by_arguments = torch.autograd.grad(value, arguments, create_graph=True)
            value = torch.stack([(g * d).sum() for g, d in zip(by_arguments, along, strict=True)]).sum()
        return torch.autograd.grad(value, arguments)

    close(third(partial(evaluate, map)), third(twin))


@pytest.mark.parametrize("needed", [n for n in product([False, True], repeat=3) if any(n)])
def test_only_the_gradients_that_are_needed_are_asked_for(needed: tuple[bool, ...]) -> None:
    map = Contraction()
    arguments = [t.requires_grad_(need) for t, need in zip(draw(MAPS[0][2]), needed, strict=True)]
    leaves = [t for t in arguments if t.requires_grad]
    y = evaluate(map, *arguments)
    cotangent = torch.randn_like(y, requires_grad=True)
    first = torch.autograd.grad(y, leaves, cotangent, create_graph=True)
    assert map.asked == [needed]
    close(first, torch.autograd.grad(plain(*arguments), leaves, cotangent))
    y.backward(cotangent)
    assert [t.grad is not None for t in arguments] == list(needed)
    map.asked.clear()
    torch.autograd.grad([own.sum() for own in first], [cotangent, *leaves], allow_unused=True)
    others = [tuple(need and j != i for j, need in enumerate(needed)) for i in range(3) if needed[i]]
    assert sorted(map.asked) == sorted(other for other in others if any(other))
