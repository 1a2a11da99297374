"""Random causal operations and the memory that a call takes, for the tests of the causal forms."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Case(NamedTuple):
    x: Tensor
    K: Tensor
    L: Tensor
    W: Tensor
    M: Tensor
    groups: int = 1


def case(
    batch: int = 2,
    inputs: int = 4,
    outputs: int = 6,
    steps: int = 7,
    length: int = 9,
    frequencies: int = 8,
    taps: int = 3,
    groups: int = 1,
    gates: bool = True,
    dtype: torch.dtype = torch.float64,
) -> Case:
    """A random operation without any structure; gradients are asked for."""
    generator = torch.Generator().manual_seed(steps)

    def draw(*shape: int, kind: torch.dtype) -> Tensor:
        return torch.randn(shape, dtype=kind, generator=generator).requires_grad_()

    kind = dtype.to_complex()
    return Case(
        draw(batch, inputs, steps, kind=dtype),
        draw(length, frequencies, kind=kind),
        draw(frequencies, taps, kind=kind),
        draw(taps, inputs // groups, outputs, kind=kind if gates else dtype),
        draw(frequencies, steps, kind=kind),
        groups,
    )


def dense(x: Tensor, K: Tensor, L: Tensor, W: Tensor, M: Tensor, groups: int = 1) -> Tensor:
    """The whole real matrix (O, U, I, T), with everything above the diagonal of its steps struck out."""
    diagonal = torch.einsum("fa,aio->fio", L, W.to(L.dtype))
    own, made = diagonal.shape[1], diagonal.shape[2] // groups
    parts = []
    for g in range(groups):
        matrix = torch.einsum("uf,fio,ft->ouit", K, diagonal[:, :, g * made : (g + 1) * made], M).real
        rows, columns = torch.arange(K.shape[0])[:, None], torch.arange(M.shape[1])
        matrix = matrix * (columns <= rows)[None, :, None]
        parts.append(torch.einsum("ouit,bit->bou", matrix, x[:, g * own : (g + 1) * own]))
    return torch.cat(parts, 1)


class _Live(TorchDispatchMode):
    """Follows the bytes of all tensors that are made inside and still held."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in given:
                storage = tensor.untyped_storage()
                self.held[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.held = {key: pair for key, pair in self.held.items() if not pair[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self.held.values()))
        return result


def peak_bytes(call: Callable[[], object]) -> int:
    """The most bytes of tensors that a call holds at once."""
    with _Live() as live:
        call()
    peak: int = live.peak
    return peak
