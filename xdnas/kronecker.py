"""Kronecker products of K-matrices, one for each axis of a signal."""

from collections.abc import Iterator
from functools import reduce

import torch
from torch import Tensor, nn

from xdnas.kmatrix import KMatrix


class Kronecker(nn.Module):
    """The Kronecker product of K-matrices; the last one acts on the last axis.

    Args:
        kmatrices: one K-matrix per axis, first axis first.
    """

    def __init__(self, *kmatrices: KMatrix) -> None:
        super().__init__()
        if not kmatrices:
            raise ValueError("Kronecker: give at least one KMatrix")
        for i, kmatrix in enumerate(kmatrices):
            self.add_module(str(i), kmatrix)

    def __iter__(self) -> Iterator[KMatrix]:
        return (self[i] for i in range(len(self)))

    def __len__(self) -> int:
        return len(self._modules)

    def __getitem__(self, axis: int) -> KMatrix:
        kmatrix = list(self._modules.values())[axis]
        assert isinstance(kmatrix, KMatrix)
        return kmatrix

    @property
    def n(self) -> tuple[int, ...]:
        """Size of every axis."""
        return tuple(kmatrix.n for kmatrix in self)

    def dense(self) -> Tensor:
        """The complex matrix (prod n, prod n)."""
        return reduce(torch.kron, (kmatrix.dense() for kmatrix in self))

    def forward(self, x: Tensor) -> Tensor:
        """Apply along the last axes of x (..., *n)."""
        if tuple(x.shape[-len(self) :]) != self.n:
            raise ValueError(f"Kronecker: the last axes of the input are {tuple(x.shape)}, the matrices need {self.n}")
        for axis, kmatrix in enumerate(self):
            x = kmatrix(x, dim=axis - len(self))
        return x
