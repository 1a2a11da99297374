"""How many multiplications an XD layer takes."""

from collections.abc import Iterable
from math import prod

from xdnas.kmatrix import KMatrix
from xdnas.spectrum import kept
from xdnas.xd import XD

IN_A_COMPLEX = 4  # real multiply-adds of a complex one


def multiply_adds(xd: XD, samples: int) -> int:
    """Real multiply-adds of a forward pass on some samples of the layer's input size.

    They are counted factor by factor; computing may merge factors into larger products where that is faster. Left
    out are the products with C and, for causal layers, those that write out K, L and M: few, and no more for more
    samples.
    """
    if xd.causal in (True, "triangular"):
        return _by_taps(xd, samples)
    if xd.causal == "stack":
        # every output step is an example of its own
        samples *= xd.output_size[0]
    return _by_frequencies(xd, samples)


def _pairs(xd: XD) -> int:
    return xd.out_channels * xd.in_channels // xd.groups


def _frequencies(xd: XD) -> int:
    return (kept(xd.n) if xd.compact else xd.n[0]) * prod(xd.n[1:])


def _by_frequencies(xd: XD, samples: int) -> int:
    """M on the inputs, L on the kernels, the mix of channels, K on the outputs."""
    pairs, frequencies = _pairs(xd), _frequencies(xd)

    def product(matrices: Iterable[KMatrix], columns: int) -> int:
        return sum(k.factors.numel() // 2 * columns * frequencies // k.n for k in matrices)

    transforms = product(xd.M, samples * xd.in_channels) + product(xd.K, samples * xd.out_channels)
    return IN_A_COMPLEX * (transforms + product(xd.L, pairs) + samples * frequencies * pairs)


def _by_taps(xd: XD, samples: int) -> int:
    """The matrix of every tap, the mix of channels by each, and these matrices on the outputs."""
    (steps,), (outputs,) = xd.input_size, xd.output_size
    taps = (prod(xd.kernel_size) + (xd.b is not None)) * (2 if xd.C is not None else 1)
    matrices = 2 * taps * steps * _frequencies(xd) * outputs
    return matrices + samples * taps * steps * (_pairs(xd) + xd.out_channels * outputs)
