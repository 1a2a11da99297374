"""Named K-matrices as the blocks of their butterfly factors.

A size n = 2^a 3^b 5^c is written in the mixed radix system `radices(n)`, most significant digit first. The factor of a
digit with radix r and stride s (the product of the radices behind it) mixes the r positions that differ in that digit
only; it is stored as n/r blocks (r, r), numbered by the other digits: block i acts on positions
p_j = r (i - i mod s) + i mod s + j s, j = 0 ... r-1.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

PRIMES = (2, 3, 5)


def is_good_size(n: int) -> bool:
    """Whether n = 2^a 3^b 5^c and n >= 2, a size that a K-matrix can have."""
    for prime in PRIMES:
        while n > 1 and n % prime == 0:
            n //= prime
    return n == 1


def good_size(least: int, power_of_two: bool = False) -> int:
    """The smallest size of a K-matrix that is at least `least` (and at least 2)."""
    n = max(2, least)
    if power_of_two:
        return 1 << (n - 1).bit_length()
    while not is_good_size(n):
        n += 1
    return n


def radices(n: int) -> tuple[int, ...]:
    """The prime factors of n in an order whose leading part has a product close to sqrt(n), and so on in each half.

    Neighbouring factors are multiplied into blocks of about sqrt(n) before they are applied, which this order allows.
    """
    if n < 2 or not is_good_size(n):
        raise ValueError(
            f"KMatrix: size {n} is not 2^a 3^b 5^c with n >= 2; the next size that is: {good_size(max(n, 2))}"
        )
    if n in PRIMES:
        return (n,)
    half = next(d for d in range(math.isqrt(n), 0, -1) if n % d == 0)
    return radices(half) + radices(n // half) if half > 1 else (n,)


def strides(n: int) -> tuple[int, ...]:
    """Stride of every digit of `radices(n)`: the first is the largest, the last is 1."""
    done, result = 1, []
    for radix in radices(n):
        done *= radix
        result.append(n // done)
    return tuple(result)


def digit_reversed(n: int) -> Tensor:
    """(n,) int64: the frequency in row i of the decreasing-stride DFT; the bit reversal where n is a power of two."""
    return reversed_digits(radices(n))


def reversed_digits(digits: Sequence[int], device: "torch.device | None" = None) -> Tensor:
    """(product,) int64: every number with digits of these radices, read from the last digit to the first."""
    order = torch.zeros(1, dtype=torch.int64, device=device)
    for radix in reversed(digits):
        order = (torch.arange(radix, device=device)[:, None] + radix * order).flatten()
    return order


def fourier_blocks(n: int, *, inverse: bool, normalized: bool, increasing: bool) -> list[Tensor]:
    """Factors, first applied first, of the DFT (or its inverse) of size n up to a digit reversal; complex128.

    Decreasing strides: rows of the transform in digit-reversed order (decimation in frequency). Increasing: columns so,
    the transpose of the former. `normalized` divides each factor by sqrt(r); a plain inverse divides it by r.
    """
    sign = 1 if inverse else -1
    factors = []
    for radix, stride in zip(radices(n), strides(n), strict=True):
        q, j = torch.arange(radix)[:, None], torch.arange(radix)[None, :]
        low = torch.arange(stride)[:, None, None]
        # both exponents over the common denominator radix * stride, reduced as integers: exact phases
        phase = (low * q + stride * j * q) % (radix * stride)
        block = torch.polar(torch.ones((), dtype=torch.float64), sign * 2 * math.pi / (radix * stride) * phase.double())
        scale = math.sqrt(radix) if normalized else radix if inverse else 1
        factors.append((block / scale).repeat(n // (radix * stride), 1, 1))
    return [f.mT.contiguous() for f in reversed(factors)] if increasing else factors


def identity_blocks(n: int) -> list[Tensor]:
    """Factors of the identity of size n, in decreasing stride; complex128."""
    return [torch.eye(r, dtype=torch.complex128).repeat(n // r, 1, 1) for r in radices(n)]


def first_blocks(n: int) -> list[Tensor]:
    """Factors, in decreasing stride, of the matrix with ones in column 0 that maps x to x[0] everywhere; complex128."""
    factors = [torch.zeros(n // r, r, r, dtype=torch.complex128) for r in radices(n)]
    for factor in factors:
        factor[:, :, 0] = 1
    return factors


def random_blocks(n: int, generator: torch.Generator | None = None) -> list[Tensor]:
    """Complex normal factors in decreasing stride, scaled so that the product keeps the norm in the mean."""
    return [torch.randn(n // r, r, r, dtype=torch.complex128, generator=generator) / math.sqrt(r) for r in radices(n)]


def permutation_blocks(permutation: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Two products of factors, decreasing then increasing strides, whose product maps x to x[permutation].

    The Clos (for radix 2: Benes) network: the outer factors route every element through one of r inner permutations,
    found by splitting an r-regular bipartite graph into matchings.
    """
    n = len(permutation)
    outer = [np.zeros((n // r, r, r)) for r in radices(n)]
    inner = [np.zeros((n // r, r, r)) for r in radices(n)]
    _route(permutation.numpy(), 0, 0, outer, inner)
    down = [torch.from_numpy(f).to(torch.complex128) for f in outer]
    up = [torch.from_numpy(f).to(torch.complex128) for f in reversed(inner)]
    return down, up


def _route(permutation: np.ndarray, level: int, part: int, first: list[np.ndarray], last: list[np.ndarray]) -> None:
    """Fill the factors of one digit for one sub-network, then those of the r sub-networks inside it."""
    n, radix = len(permutation), first[level].shape[-1]
    size = n // radix
    block = part * size
    if size == 1:
        first[level][block][np.arange(radix), permutation] = 1
        last[level][block] = np.eye(radix)
        return
    for lane, chosen in enumerate(_matchings(permutation, size, radix)):
        source, target = permutation[chosen], chosen
        first[level][block + source % size, lane, source // size] = 1
        last[level][block + target % size, target // size, lane] = 1
        inside = np.empty(size, dtype=np.int64)
        inside[target % size] = source % size
        _route(inside, level + 1, part * radix + lane, first, last)


def _matchings(permutation: np.ndarray, size: int, radix: int) -> list[np.ndarray]:
    """Split the outputs 0 ... n-1 into `radix` sets, each using every outer switch once on either side."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import maximum_bipartite_matching

    left = list(range(len(permutation)))
    result = []
    for _ in range(radix):
        edges: dict[tuple[int, int], int] = {}
        for output in left:
            edges.setdefault((output % size, int(permutation[output]) % size), output)
        rows, columns = zip(*edges, strict=True)
        match = maximum_bipartite_matching(csr_matrix((np.ones(len(edges)), (rows, columns)), shape=(size, size)))
        chosen = np.array([edges[int(row), column] for column, row in enumerate(match)])
        result.append(chosen)
        taken = set(chosen.tolist())
        left = [output for output in left if output not in taken]
    return result
