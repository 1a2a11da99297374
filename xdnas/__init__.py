"""Neural architecture search over operations: XD-operations started at the convolutions of a backbone."""

from xdnas.kmatrix import KMatrix as KMatrix
from xdnas.kronecker import Kronecker as Kronecker
from xdnas.xd import XD as XD
