"""K-matrices: products of butterfly matrices, stored as real pairs.

A K-matrix of size n and depth d is a product of d butterfly matrices with alternating stride order, each a product of
one sparse factor per prime factor of n (Dao et al. 2020, Definition 2; radices 3 and 5 beside 2). This file is the one
place that knows how complex numbers are stored: as a trailing axis of two reals, so that casts, fused optimizers,
clipping, distributed training and checkpoints treat them as any other parameter.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from xdnas.fused import LARGEST_BLOCK, Fused, apply, fuse
from xdnas.transforms import (
    digit_reversed,
    first_blocks,
    fourier_blocks,
    identity_blocks,
    permutation_blocks,
    radices,
    random_blocks,
)

INITS = ("dft", "idft", "identity", "first", "random")
LOWER = ("identity", "first", "random")


def as_complex(pairs: Tensor) -> Tensor:
    """Complex view of real pairs (..., 2); half and bfloat16 are widened to float32 first."""
    return torch.view_as_complex(pairs.float() if pairs.dtype in (torch.float16, torch.bfloat16) else pairs)


def as_pairs(values: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Real pairs (..., 2) of a complex tensor, in memory of their own; a lazy conjugate is carried out."""
    return torch.view_as_real(values.resolve_conj()).to(dtype).clone(memory_format=torch.contiguous_format)


class KMatrix(nn.Module):
    """A complex (n, n) matrix of `depth` butterfly factors.

    Args:
        n: size, 2^a 3^b 5^c with n >= 2.
        depth: number of butterfly matrices, at least 1.
        init: "dft", "idft", "identity", "first", "random", or a permutation p as a sequence or int64 tensor (n,), for
            which the matrix maps x to x[..., p]. At depth 1 "dft" is the Fourier matrix with rows in the order
            `frequencies` and "idft" the inverse with columns in that order, so that their product is the identity.
            "first" has ones in column 0 and zeros elsewhere. Deeper, the other butterflies start as the identity.
        normalized: divide the Fourier matrix by sqrt(n), which makes it unitary; else "idft" divides by n.
        increasing_stride: whether the first butterfly starts with stride 1. Default: only for "idft". With increasing
            strides "dft" and with decreasing ones "idft" reorder the other side of the matrix.
        triangular: keep every block of every factor lower triangular; "identity", "first" and "random" only. Positions
            within a block increase, so the matrix is exactly lower triangular at any depth, trained or not.
        generator: source of the numbers of "random".

    Raises:
        ValueError: for a size, depth, name or permutation that is not as above; a permutation needs a decreasing
            butterfly followed by an increasing one, so depth 2, or 3 with increasing_stride=True.
    """

    def __init__(
        self,
        n: int,
        depth: int = 1,
        init: "str | Tensor | list[int]" = "dft",
        *,
        normalized: bool = True,
        increasing_stride: bool | None = None,
        triangular: bool = False,
        generator: torch.Generator | None = None,
        device: "torch.device | str | None" = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        radices(n)
        if depth < 1:
            raise ValueError(f"KMatrix: depth {depth} is not allowed; give a depth of at least 1")
        if triangular and not (isinstance(init, str) and init in LOWER):
            raise ValueError(
                f"KMatrix: init {init if isinstance(init, str) else 'permutation'!r} is not lower triangular; with "
                f"triangular=True give {', '.join(LOWER)}"
            )
        self.n = n
        self.depth = depth
        self.triangular = triangular
        self.increasing_stride = (
            init == "idft" if increasing_stride is None and isinstance(init, str) else bool(increasing_stride)
        )
        blocks = self._initial_blocks(init, normalized, generator)
        flat = torch.stack([torch.cat([self._shaped(f).reshape(-1) for f in butterfly]) for butterfly in blocks])
        pairs = as_pairs(flat, torch.get_default_dtype() if dtype is None else dtype)
        self.factors = nn.Parameter(pairs.to(device))

    def _initial_blocks(
        self, init: "str | Tensor | list[int]", normalized: bool, generator: torch.Generator | None
    ) -> list[list[Tensor]]:
        n, up = self.n, self.increasing_stride
        butterflies = [identity_blocks(n)[:: -1 if up ^ bool(d % 2) else 1] for d in range(self.depth)]
        if not isinstance(init, str):
            start = int(up)
            permutation = _checked_permutation(init, n)
            if self.depth < start + 2:
                raise ValueError(f"KMatrix: a permutation needs depth {start + 2} or more, got depth {self.depth}")
            butterflies[start : start + 2] = permutation_blocks(permutation)
        elif init in ("dft", "idft"):
            # only butterflies with an even index have the stride order of the first
            last = (self.depth - 1) // 2 * 2
            butterflies[last] = fourier_blocks(n, inverse=init == "idft", normalized=normalized, increasing=up)
        elif init == "first":
            butterflies[0] = first_blocks(n)[:: -1 if up else 1]
        elif init == "random":
            butterflies = [random_blocks(n, generator)[:: -1 if up ^ bool(d % 2) else 1] for d in range(self.depth)]
        elif init != "identity":
            raise ValueError(f"KMatrix: unknown init {init!r}; known: {', '.join(INITS)}, or a permutation")
        return butterflies

    @property
    def frequencies(self) -> Tensor:
        """(n,) int64: the frequency that stands in each position behind a depth-1 "dft"."""
        return digit_reversed(self.n)

    def butterflies(self) -> list[list[Tensor]]:
        """Complex blocks (n/r, r, r) of the factors of each butterfly, first applied first.

        Views of the parameter; copies without the entries above the diagonals where the matrix is triangular.
        """
        values = as_complex(self.factors)
        views = [self._views(values[d], self._increasing(d)) for d in range(self.depth)]
        return [[self._shaped(factor) for factor in butterfly] for butterfly in views]

    def _shaped(self, factor: Tensor) -> Tensor:
        return factor.tril() if self.triangular else factor

    def _increasing(self, d: int) -> bool:
        return self.increasing_stride ^ bool(d % 2)

    def _views(self, values: Tensor, increasing: bool) -> Iterator[Tensor]:
        start = 0
        for r in reversed(radices(self.n)) if increasing else radices(self.n):
            yield values[start : start + self.n * r].view(self.n // r, r, r)
            start += self.n * r

    def fused(self, dense_up_to: int = LARGEST_BLOCK) -> Fused:
        """The factors multiplied together into dense blocks, ready to be applied."""
        return fuse(self.butterflies(), [self._increasing(d) for d in range(self.depth)], self.n, dense_up_to)

    def dense(self) -> Tensor:
        """The complex matrix (n, n)."""
        return self.fused(dense_up_to=self.n).factors[0].blocks[0, 0]

    def forward(self, x: Tensor, dim: int = -1) -> Tensor:
        """Apply the matrix along `dim` of a real or complex x, whose size there is n; equals dense() applied there.

        Complex in the wider precision of x and the matrix.

        Raises:
            ValueError: x has no axis `dim`, or another size there.
        """
        if not -x.dim() <= dim < x.dim() or x.shape[dim] != self.n:
            raise ValueError(f"KMatrix: axis {dim} of the input {tuple(x.shape)} must have the matrix's size {self.n}")
        fused = self.fused()
        dtype = torch.promote_types(fused.factors[0].blocks.dtype, x.dtype)
        moved = x.movedim(dim, 0)
        flat = moved.reshape(self.n, x.numel() // self.n).to(dtype)
        return apply(fused.to(dtype), flat).reshape(moved.shape).movedim(0, dim)

    @property
    def twiddle(self) -> Tensor:
        """Complex view (depth, log2 n, n/2, 2, 2) in the layout of torch-butterfly.

        Raises:
            ValueError: unless n is a power of two.
        """
        if self.n & (self.n - 1):
            raise ValueError(f"KMatrix: twiddle needs a power of two, this matrix has size {self.n}; use factors")
        return as_complex(self.factors).view(self.depth, -1, self.n // 2, 2, 2)

    @classmethod
    def from_twiddle(cls, twiddle: Tensor, increasing_stride: bool = False) -> "KMatrix":
        """The matrix with this complex twiddle (depth, log2 n, n/2, 2, 2); values are copied.

        Raises:
            ValueError: for any other shape, or a twiddle that is not complex.
        """
        shape = tuple(twiddle.shape)
        n = 2 * shape[2] if len(shape) == 5 else 0
        if not twiddle.is_complex() or n < 2 or shape != (shape[0], n.bit_length() - 1, n // 2, 2, 2):
            raise ValueError(
                f"KMatrix: a twiddle is complex with shape (depth, log2 n, n/2, 2, 2), got {twiddle.dtype} {shape}"
            )
        pairs = as_pairs(twiddle.detach())
        matrix = cls(n, shape[0], "identity", increasing_stride=increasing_stride, dtype=pairs.dtype)
        matrix.factors = nn.Parameter(pairs.reshape(shape[0], -1, 2))
        return matrix

    def extra_repr(self) -> str:
        """Size, depth and stride order."""
        triangular = ", triangular=True" if self.triangular else ""
        return f"{self.n}, depth={self.depth}, increasing_stride={self.increasing_stride}{triangular}"


def _checked_permutation(values: "Tensor | list[int]", n: int) -> Tensor:
    permutation = torch.as_tensor(values, device="cpu")
    if permutation.is_floating_point() or not torch.equal(permutation.sort().values, torch.arange(n)):
        raise ValueError(f"KMatrix: init is not a permutation of 0 ... {n - 1}: {permutation.tolist()[:8]} ...")
    return permutation
