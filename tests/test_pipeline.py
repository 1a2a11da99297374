"""Every way through the operation gives Real(K sum_j diag(side taps) M x_j), with the same gradients."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from itertools import product
from math import prod
from typing import NamedTuple

import dense
import pytest
import torch
from torch import Tensor

from xdnas import KMatrix, pipeline
from xdnas.geometry import Positions
from xdnas.multilinear import Multilinear, evaluate
from xdnas.pipeline import Analysis, Synthesis, Whole, analyse, chunks, mix_fixed, operate, synthesise
from xdnas.stages import analysis, synthesis

WAYS: dict[str, list[str]] = {"whole": ["Whole"], "three": ["Analysis", "Mixing", "Synthesis"], "traced": []}


class Case(NamedTuple):
    """Transform, input and output sizes; groups, inputs and outputs of each; whether all leads share one side."""

    n: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[Positions, ...]
    channels: tuple[int, int, int]
    shared: bool = True
    depth: int = 1


CASES = [
    Case((6,), (5,), (Positions(0, 2, 3),), (1, 3, 2)),
    Case((4, 6), (3, 6), (Positions(0, 1, 4), Positions(4, 1, 3)), (2, 1, 2), shared=False, depth=2),
    Case((96,), (70,), (Positions(0, 3, 20),), (3, 2, 1), depth=2),
    Case((2, 3, 4), (2, 2, 3), (Positions(0, 1, 2), Positions(1, 1, 2), Positions(0, 3, 2)), (3, 1, 1)),
    Case((72, 2), (72, 2), (Positions(0, 5, 14), Positions(0, 1, 2)), (1, 1, 1), shared=False),
]


def draw(*shape: int) -> Tensor:
    """Random numbers, in a layout that is not contiguous."""
    values = torch.randn(*reversed(shape), dtype=torch.float64)
    return values.permute(*reversed(range(len(shape)))).requires_grad_()


class Operation:
    """A random operation: its stages, the tensors that they take, and the dense twin of each part."""

    def __init__(self, case: Case) -> None:
        self.channels, self.groups, self.frequencies = case.channels, case.channels[0], prod(case.n)
        self.sizes = tuple(at.number for at in case.outputs)
        self.m = [KMatrix(n, case.depth, "random", dtype=torch.float64) for n in case.n]
        self.k = [KMatrix(n, case.depth, "random", increasing_stride=True, dtype=torch.float64) for n in case.n]
        self.before, self.first = analysis([m.fused() for m in self.m], case.inputs)
        self.behind, self.second = synthesis([k.fused() for k in self.k], case.outputs)
        lead, last = prod(case.n[:-1]), case.n[-1]
        self.side, self.taps = draw(1 if case.shared else lead, 2 * last, 3), draw(lead, 3, prod(case.channels))
        sides = self.side.expand(lead, -1, -1).unflatten(1, (last, 2))
        self.diagonals = torch.einsum("lnck,lkp->lncp", sides, self.taps).flatten(0, 1)
        self.M = reduce(torch.kron, [dense.kmatrix(m)[:, :s] for m, s in zip(self.m, case.inputs, strict=True)])
        rows = [dense.kmatrix(k)[at.indices(k.n, self.side.device)] for k, at in zip(self.k, case.outputs, strict=True)]
        self.K = reduce(torch.kron, rows)

    def analysed(self, x: Tensor) -> Tensor:
        return planes(torch.einsum("fn,bin->fbi", self.M, x.flatten(2).to(self.M.dtype)))

    def mixed(self, signal: Tensor) -> Tensor:
        own = torch.complex(*signal.unbind(1)).unflatten(2, self.channels[:2])
        factors = torch.complex(*self.diagonals.unbind(1)).unflatten(1, self.channels)
        return planes(torch.einsum("fbgi,fgio->fbgo", own, factors).flatten(2))

    def synthesised(self, y: Tensor) -> Tensor:
        x = torch.einsum("uf,fbo->bou", self.K, torch.complex(*y.unbind(1))).real
        return x.reshape(*x.shape[:2], *self.sizes)


def planes(signal: Tensor) -> Tensor:
    return torch.stack((signal.real, signal.imag), 1)


def close(a: Tensor | None, b: Tensor | None) -> None:
    assert a is not None
    assert b is not None
    assert a.shape == b.shape
    if b.numel():
        assert (a - b).abs().max() <= 1e-12 * b.abs().max()


def same(own: Tensor, wanted: Tensor, leaves: list[Tensor]) -> None:
    """The same value, and the same gradients."""
    close(own, wanted)
    cotangent = draw(*wanted.shape).detach()
    for pair in zip(
        *(torch.autograd.grad(y, leaves, cotangent, retain_graph=True) for y in (own, wanted)), strict=True
    ):
        close(*pair)


@contextmanager
def going(way: str, op: Operation, examples: int) -> Iterator[list[str]]:
    """Make the operation go one way, some examples at a time; gives the names of the maps that it evaluates."""
    taken: list[str] = []

    def noted(map: Multilinear, *arguments: Tensor) -> Tensor:
        taken.append(type(map).__name__)
        return evaluate(map, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "evaluate", noted)
        patch.setattr(pipeline, "CHUNK", examples * 2 * op.frequencies * op.groups * max(op.channels[1:]))
        patch.setattr(pipeline, "SMALL", 0 if way == "three" else 1 << 20)
        patch.setattr(torch.compiler, "is_compiling", lambda: way == "traced")
        yield taken


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("batch", "examples"), [(0, 1), (1, 1), (2, 1), (5, 2), (5, 9)])
def test_all_ways_are_the_definition(case: Case, batch: int, examples: int) -> None:
    op = Operation(case)
    x = draw(batch, op.groups * op.channels[1], *case.inputs)
    wanted = op.synthesised(op.mixed(op.analysed(x)))
    cotangent, by_matrices = torch.randn_like(wanted), []
    for way, maps in WAYS.items():
        with going(way, op, examples) as taken:
            y = operate(op.before, op.behind, op.groups, op.sizes, x, op.side, op.taps, op.first, op.second)
            assert taken == (WAYS["three"] if way == "whole" and batch < op.channels[2] else maps)
            same(y, wanted, [x, op.side, op.taps, *(k.factors for k in (*op.k, *op.m))])
            by_matrices.append(torch.autograd.grad(y, [*op.first, *op.second], cotangent, retain_graph=True))
    for own in zip(*by_matrices, strict=True):
        close(own[0], own[1])
        close(own[0], own[2])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", ["three", "traced"])
@pytest.mark.parametrize(("batch", "examples"), [(0, 1), (1, 1), (5, 2)])
def test_each_part(case: Case, way: str, batch: int, examples: int) -> None:
    op = Operation(case)
    x = draw(batch, op.groups * op.channels[1], *case.inputs)
    signal, y = (draw(op.frequencies, 2, batch, op.groups * own) for own in op.channels[1:])
    with going(way, op, examples):
        by_analysis = analyse(op.before, op.frequencies, x, op.first)
        same(by_analysis, op.analysed(x), [x, *(m.factors for m in op.m)])
        same(mix_fixed(signal, op.diagonals, op.groups), op.mixed(signal), [signal, op.side, op.taps])
        by_synthesis = synthesise(op.behind, op.sizes, y, op.second)
        same(by_synthesis, op.synthesised(y), [y, *(k.factors for k in op.k)])


@pytest.mark.parametrize("case", CASES[:2])
def test_gradients_are_given_where_needed(case: Case) -> None:
    op = Operation(case)
    x = draw(3, op.groups * op.channels[1], *case.inputs)
    y = draw(op.frequencies, 2, 3, op.groups * op.channels[2])
    maps: list[tuple[Multilinear, list[Tensor]]] = [
        (Whole(op.before, op.behind, op.groups, op.sizes), [x, op.side, op.taps, *op.first, *op.second]),
        (Analysis(op.before, op.frequencies), [x, *op.first]),
        (Synthesis(op.behind, op.sizes), [y, *op.second]),
    ]
    for map, arguments in maps:
        with going("whole", op, 2), torch.no_grad():
            cotangent = torch.randn_like(map.value(*arguments))
            whole = map.gradients(cotangent, [True] * len(arguments), *arguments)
            for needed in product([False, True], repeat=len(arguments)):
                result = map.gradients(cotangent, needed, *arguments)
                for own, each, need in zip(result, whole, needed, strict=True):
                    if need:
                        close(own, each)
                    else:
                        assert own is None


CHUNKS = [(0, 1, []), (1, 1, [1]), (5, 1, [1] * 5), (5, 2, [2, 2, 1]), (7, 5, [4, 3]), (4, 9, [4]), (2, 0, [1, 1])]


@pytest.mark.parametrize(("batch", "limit", "sizes"), CHUNKS)
def test_chunks_are_even_and_in_order(
    batch: int, limit: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "CHUNK", 2 * 10 * limit)
    parts = [torch.arange(batch)[chunk] for chunk in chunks(torch.empty(batch), 10)]
    assert [len(part) for part in parts] == sizes
    assert torch.equal(torch.cat([torch.arange(0), *parts]), torch.arange(batch))
