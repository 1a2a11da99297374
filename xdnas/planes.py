"""Complex matrices in real arithmetic: a complex axis is two planes, real parts and imaginary parts.

A complex product (a + ib)(x + iy) is the real product [[a, -b], [b, a]] [x; y]. With a real input or a real output half
of that matrix is left out, and half of the work with it. The signal meets real matrix products only: no conjugates.
"""

import torch
from torch import Tensor

REAL, COMPLEX = 1, 2


def real_matrices(
    blocks: Tensor, planes_out: int, planes_in: int, *, rows_inside: bool, columns_inside: bool
) -> Tensor:
    """Complex blocks (P, R', R) as real matrices (P, planes_out R', planes_in R).

    `rows_inside`: the plane is the inner index of a row, else the outer one; `columns_inside` likewise.
    """
    parts = torch.view_as_real(blocks)
    re, im = parts[..., 0], parts[..., 1]
    above = (re, -im)[:planes_in]
    below = (im, re)[:planes_in]
    entries = torch.stack(above + below if planes_out == COMPLEX else above)
    count, rows, columns = blocks.shape
    entries = entries.view(planes_out, planes_in, count, rows, columns)
    order = (2, *((3, 0) if rows_inside else (0, 3)), *((4, 1) if columns_inside else (1, 4)))
    return entries.permute(order).reshape(count, planes_out * rows, planes_in * columns)
