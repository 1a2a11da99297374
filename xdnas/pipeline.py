"""The operation as multilinear maps: of the signal, the kernel's side and taps, and the matrices of K and M.

With many channels it runs as three maps, M x, the mix, and Real(K y): what lies between is kept for the gradients, and
the first and the last go through the batch in chunks. Where the diagonals of all channels are small, one map does all
for a chunk while the chunk is in the processor's cache, and again for the gradients.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from xdnas.limits import limit
from xdnas.mixing import FixedMixing, Mixing, diagonals, mix
from xdnas.multilinear import evaluate, refuse_batch
from xdnas.steps import Stage, run, run_back

T = TypeVar("T")
CHUNK = 1 << 19  # numbers of the transformed signal at a time
SMALL = 3 << 18  # numbers of all diagonals that are kept as matrices


def operate(
    before: tuple[Stage, ...],
    behind: tuple[Stage, ...],
    groups: int,
    output_size: tuple[int, ...],
    x: Tensor,
    side: Tensor,
    taps: Tensor,
    first: Sequence[Tensor],
    second: Sequence[Tensor],
) -> Tensor:
    """Real(K sum_j diag(side taps) M x_j): x (B, I, *N) to (B, O, *output_size).

    before, behind, first, second: the stages of M and of K, and the matrices of their steps.
    """
    compiling = torch.compiler.is_compiling()
    frequencies, pairs = taps.shape[0] * side.shape[1] // 2, taps.shape[2]
    # a comparison with the size of the batch would fix it for a tracer
    if not compiling and 2 * frequencies * pairs <= SMALL and x.shape[0] >= pairs // x.shape[1]:
        return evaluate(Whole(before, behind, groups, output_size), x, side, taps, *first, *second)
    signal = analyse(before, frequencies, x, first)
    mixed = mix(signal, diagonals(side, taps), groups) if compiling else evaluate(Mixing(groups), signal, side, taps)
    return synthesise(behind, output_size, mixed, second)


def transform(stages: tuple[Stage, ...], x: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """All stages on x as it is."""
    if torch.compiler.is_compiling():
        return run(stages, x, matrices)
    return evaluate(Transform(stages), x, *matrices) if stages else x


def analyse(stages: tuple[Stage, ...], frequencies: int, x: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """M x: (B, I, *N) to (F, 2, B, I); in one piece for tracers."""
    if torch.compiler.is_compiling():
        return run(stages, _columns(x), matrices).view(frequencies, 2, *x.shape[:2])
    return evaluate(Analysis(stages, frequencies), x, *matrices)


def mix_fixed(signal: Tensor, diagonals: Tensor, groups: int) -> Tensor:
    """The mix with diagonals (F, 2, pairs): (F, 2, B, I) to (F, 2, B, O); in one piece for tracers."""
    if torch.compiler.is_compiling():
        return mix(signal, diagonals, groups)
    return evaluate(FixedMixing(groups), signal, diagonals)


def synthesise(
    stages: tuple[Stage, ...], output_size: tuple[int, ...], y: Tensor, matrices: Sequence[Tensor]
) -> Tensor:
    """Real(K y): (F, 2, B, O) to (B, O, *output_size); in one piece for tracers."""
    if torch.compiler.is_compiling():
        batch, outputs = y.shape[2:]
        x = run(stages, y.flatten(2), matrices).reshape(prod(output_size), batch * outputs)
        return x.t().reshape(batch, outputs, *output_size)
    return evaluate(Synthesis(stages, output_size), y, *matrices)


class Transform(NamedTuple):
    """x and matrices to what `run` makes of them."""

    stages: tuple[Stage, ...]

    def value(self, x: Tensor, *matrices: Tensor) -> Tensor:
        """In one piece."""
        return run(self.stages, x, matrices)

    def gradients(self, grad: Tensor, needed: Sequence[bool], x: Tensor, *matrices: Tensor) -> list[Tensor | None]:
        """Of x and of the matrices."""
        return run_back(self.stages, x, matrices, grad, needed)


class Analysis(NamedTuple):
    """x (B, I, *N) and matrices to M x (F, 2, B, I)."""

    stages: tuple[Stage, ...]
    frequencies: int

    def value(self, x: Tensor, *matrices: Tensor) -> Tensor:
        """Chunk by chunk."""
        y = x.new_empty(self.frequencies, 2, *x.shape[:2])
        for chunk in chunks(x, self.frequencies * x.shape[1]):
            y[:, :, chunk] = run(self.stages, _columns(x[chunk]), matrices).view(self.frequencies, 2, -1, x.shape[1])
        return y

    def gradients(self, grad: Tensor, needed: Sequence[bool], x: Tensor, *matrices: Tensor) -> list[Tensor | None]:
        """Of x and of the matrices."""
        refuse_batch(grad)
        by_x = x.new_empty(x.shape) if needed[0] else None
        totals = _zeros(matrices, needed[1:])
        for chunk in chunks(x, self.frequencies * x.shape[1]):
            own = grad[:, :, chunk].reshape(self.frequencies, 2, -1)
            g, *by_matrices = run_back(self.stages, _columns(x[chunk]), matrices, own, needed)
            if by_x is not None and g is not None:
                _from_columns(g, out=by_x[chunk])
            _add(totals, by_matrices)
        return [by_x, *totals]


class Synthesis(NamedTuple):
    """y (F, 2, B, O) and matrices to Real(K y) (B, O, *output_size)."""

    stages: tuple[Stage, ...]
    output_size: tuple[int, ...]

    def value(self, y: Tensor, *matrices: Tensor) -> Tensor:
        """Chunk by chunk."""
        frequencies, _, batch, outputs = y.shape
        x = y.new_empty(batch, outputs, *self.output_size)
        for chunk in chunks(x, frequencies * outputs):
            _from_columns(run(self.stages, y[:, :, chunk].reshape(frequencies, 2, -1), matrices), out=x[chunk])
        return x

    def gradients(self, grad: Tensor, needed: Sequence[bool], y: Tensor, *matrices: Tensor) -> list[Tensor | None]:
        """Of y and of the matrices."""
        refuse_batch(grad)
        frequencies, outputs = y.shape[0], y.shape[3]
        by_y = torch.empty_like(y) if needed[0] else None
        totals = _zeros(matrices, needed[1:])
        for chunk in chunks(grad, frequencies * outputs):
            own = y[:, :, chunk].reshape(frequencies, 2, -1)
            g, *by_matrices = run_back(self.stages, own, matrices, _columns(grad[chunk]), needed)
            if by_y is not None and g is not None:
                by_y[:, :, chunk] = g.view(frequencies, 2, -1, outputs)
            _add(totals, by_matrices)
        return [by_y, *totals]


class Whole(NamedTuple):
    """x (B, I, *N), side, taps, matrices of M and of K to (B, O, *output_size), chunk by chunk."""

    analysis: tuple[Stage, ...]
    synthesis: tuple[Stage, ...]
    groups: int
    output_size: tuple[int, ...]

    def value(self, x: Tensor, side: Tensor, taps: Tensor, *matrices: Tensor) -> Tensor:
        """The operation."""
        turns = _turns(diagonals(side, taps), self.groups, x.shape[1])
        before, behind = self._shares(matrices)
        y = x.new_empty(x.shape[0], turns.shape[1] * self.groups // 2, *self.output_size)
        for chunk in self._chunks(x, turns):
            mixed = self._mix(turns, run(self.analysis, _channel_columns(x[chunk]), before))
            _from_channel_columns(run(self.synthesis, mixed, behind), out=y[chunk])
        return y

    def gradients(
        self, grad: Tensor, needed: Sequence[bool], x: Tensor, side: Tensor, taps: Tensor, *matrices: Tensor
    ) -> list[Tensor | None]:
        """Of all arguments; every chunk is computed again."""
        refuse_batch(grad)
        turns = _turns(diagonals(side, taps), self.groups, x.shape[1])
        before, behind = self._shares(matrices)
        need_x, need_side, need_taps, *rest = needed
        need_m, need_k = self._shares(rest)
        need_d = need_side or need_taps
        by_x = x.new_empty(x.shape) if need_x else None
        by_turns = torch.zeros_like(turns) if need_d else None
        totals = _zeros(matrices, rest)
        for chunk in self._chunks(x, turns):
            columns = _channel_columns(x[chunk])
            signal = run(self.analysis, columns, before)
            own = _channel_columns(grad[chunk])
            g, *by_k = run_back(self.synthesis, self._mix(turns, signal), behind, own, [True, *need_k])
            assert g is not None
            g = self._split(g, grad.shape[1])
            if by_turns is not None:
                by_turns.baddbmm_(g, self._split(signal, x.shape[1]).mT)
            by_m: list[Tensor | None] = [None] * len(before)
            if need_x or any(need_m):
                g = self._join(torch.bmm(turns.mT, g))
                g, *by_m = run_back(self.analysis, columns, before, g, [need_x, *need_m])
            if by_x is not None and g is not None:
                _from_channel_columns(g, out=by_x[chunk])
            _add(totals, [*by_m, *by_k])
        by_side, by_taps = (None, None) if by_turns is None else _by_factors(by_turns, side, taps, self.groups)
        return [by_x, by_side if need_side else None, by_taps if need_taps else None, *totals]

    def _chunks(self, x: Tensor, turns: Tensor) -> Iterator[slice]:
        frequencies, channels = turns.shape[0] // self.groups, self.groups * max(turns.shape[1:]) // 2
        return chunks(x, frequencies * channels)

    def _shares(self, items: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
        count = sum(len(stage.steps) for stage in self.analysis)
        return items[:count], items[count:]

    def _mix(self, turns: Tensor, x: Tensor) -> Tensor:
        return self._join(torch.bmm(turns, self._split(x, turns.shape[2] * self.groups // 2)))

    def _split(self, x: Tensor, channels: int) -> Tensor:
        """(F, 2, C b) as (F groups, 2 C / groups, b)."""
        own = x.view(x.shape[0], 2, self.groups, -1).transpose(1, 2)
        return own.reshape(x.shape[0] * self.groups, 2 * channels // self.groups, -1)

    def _join(self, x: Tensor) -> Tensor:
        """(F groups, 2 C / groups, b) as (F, 2, C b)."""
        own = x.view(x.shape[0] // self.groups, self.groups, 2, -1).transpose(1, 2)
        return own.reshape(own.shape[0], 2, -1)


def chunks(x: Tensor, numbers: int) -> Iterator[slice]:
    """Parts of a batch x whose examples take `numbers` complex numbers each."""
    batch = x.shape[0]
    count = -(-batch // max(1, limit(CHUNK, x) // (2 * numbers)))  # none for an empty batch
    size = -(-batch // max(1, count))
    for start in range(0, batch, max(1, size)):
        yield slice(start, min(start + size, batch))


def _zeros(matrices: Sequence[Tensor], needed: Sequence[bool]) -> list[Tensor | None]:
    return [torch.zeros_like(m) if need else None for m, need in zip(matrices, needed, strict=True)]


def _add(totals: Sequence[Tensor | None], parts: Sequence[Tensor | None]) -> None:
    for total, part in zip(totals, parts, strict=True):
        if total is not None and part is not None:
            total += part


def _columns(x: Tensor) -> Tensor:
    """(b, C, *N) to (N, b C); torch copies a transposed matrix fast, other permutations slowly."""
    return x.reshape(x.shape[0] * x.shape[1], prod(x.shape[2:])).t().contiguous()


def _from_columns(y: Tensor, out: Tensor) -> None:
    flat = out.view(out.shape[0] * out.shape[1], prod(out.shape[2:]))
    flat.copy_(y.reshape(flat.shape[::-1]).t())


def _channel_columns(x: Tensor) -> Tensor:
    """(b, C, *N) to (N, C b)."""
    return x.flatten(2).transpose(0, 1).reshape(x.shape[0] * x.shape[1], prod(x.shape[2:])).t().contiguous()


def _from_channel_columns(y: Tensor, out: Tensor) -> None:
    batch, channels = out.shape[:2]
    flat = y.reshape(prod(out.shape[2:]), channels * batch).t().contiguous()
    out.view(batch, channels, -1).copy_(flat.view(channels, batch, -1).transpose(0, 1))


def _turns(diagonals: Tensor, groups: int, inputs: int) -> Tensor:
    """Diagonals (F, 2, pairs) as real matrices (F groups, 2 O / groups, 2 I / groups)."""
    frequencies, own = diagonals.shape[0], inputs // groups
    re, im = diagonals.view(frequencies, 2, groups, own, -1).transpose(-1, -2).unbind(1)
    rows = torch.stack((torch.stack((re, -im), 3), torch.stack((im, re), 3)), 2)
    return rows.view(frequencies * groups, -1, 2 * own)


def _by_factors(by_turns: Tensor, side: Tensor, taps: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Gradients of side and taps from those of `_turns`."""
    lead, _, pairs = taps.shape
    outputs, own = by_turns.shape[1] // 2, by_turns.shape[2] // 2
    turns = by_turns.view(-1, groups, 2, outputs, 2, own)
    re = turns[:, :, 0, :, 0] + turns[:, :, 1, :, 1]
    im = turns[:, :, 1, :, 0] - turns[:, :, 0, :, 1]
    by_d = torch.stack((re, im), 1).transpose(-1, -2).reshape(lead, -1, pairs)
    by_side = torch.bmm(by_d, taps.mT)
    by_taps = torch.bmm(side.mT.expand(lead, -1, -1), by_d)
    return by_side if side.shape[0] == lead else by_side.sum(0, keepdim=True), by_taps
