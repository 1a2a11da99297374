"""What the operation refuses, and what it says."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from xdnas import XD, KMatrix, Kronecker, for_inference


def _xd(*args: Any, **options: Any) -> Callable[[], object]:
    return lambda: XD(*args, **options)


def _fixed(x: Tensor, **options: Any) -> Callable[[], object]:
    return lambda: for_inference(XD(2, 1, 3, 8, padding=2, **options))(x)


def _hooked(*, without_grad: bool) -> Callable[[], object]:
    def call() -> object:
        model = nn.Sequential(XD(2, 1, 3, 8))
        with warnings.catch_warnings(), torch.set_grad_enabled(not without_grad):
            warnings.simplefilter("ignore")
            torch.nn.utils.weight_norm(model[0])
        return for_inference(model)

    return call


ROWS: list[tuple[str, Callable[[], object], type[Exception], str]] = [
    ("kmatrix size 7", lambda: KMatrix(7), ValueError, r"size 7 is not 2\^a 3\^b 5\^c.*next size that is: 8"),
    ("kmatrix size 1", lambda: KMatrix(1), ValueError, r"size 1 .*next size that is: 2"),
    ("kmatrix size -4", lambda: KMatrix(-4), ValueError, r"size -4"),
    ("kmatrix depth 0", lambda: KMatrix(8, 0), ValueError, r"depth 0 is not allowed"),
    ("kmatrix init", lambda: KMatrix(8, init="fft"), ValueError, r"unknown init 'fft'; known: dft, idft"),
    ("permutation depth", lambda: KMatrix(4, 1, [1, 0, 2, 3]), ValueError, r"needs depth 2 or more, got depth 1"),
    ("not a permutation", lambda: KMatrix(4, 2, [0, 0, 1, 2]), ValueError, r"not a permutation of 0 ... 3"),
    ("short permutation", lambda: KMatrix(4, 2, [0, 1]), ValueError, r"not a permutation of 0 ... 3"),
    ("float permutation", lambda: KMatrix(2, 2, torch.tensor([0.0, 1.0])), ValueError, r"not a permutation"),
    (
        "kmatrix input",
        lambda: KMatrix(8)(torch.zeros(3, 7)),
        ValueError,
        r"axis -1 of the input \(3, 7\) must have the matrix's size 8",
    ),
    ("kmatrix axis", lambda: KMatrix(8)(torch.zeros(8), dim=1), ValueError, r"axis 1 of the input \(8,\)"),
    ("twiddle of 6", lambda: KMatrix(6).twiddle, ValueError, r"needs a power of two.*size 6"),
    ("real twiddle", lambda: KMatrix.from_twiddle(torch.zeros(1, 2, 2, 2, 2)), ValueError, r"a twiddle is complex"),
    (
        "twiddle shape",
        lambda: KMatrix.from_twiddle(torch.zeros(1, 3, 2, 2, 2, dtype=torch.complex64)),
        ValueError,
        r"got torch.complex64 \(1, 3, 2, 2, 2\)",
    ),
    ("no kmatrix", lambda: Kronecker(), ValueError, r"at least one KMatrix"),
    ("kronecker input", lambda: Kronecker(KMatrix(4))(torch.zeros(5)), ValueError, r"\(5,\), the matrices need \(4,\)"),
    ("kernel", _xd(1, 1, 7, (5, 5)), ValueError, r"kernel \(7, 7\) is larger than the padded input \(5, 5\)"),
    ("dilated", _xd(1, 1, 3, 6, dilation=4), ValueError, r"kernel \(3,\) \(with dilation \(9,\)\) is larger"),
    ("four axes", _xd(1, 1, 1, (2, 2, 2, 2)), ValueError, r"must be an int or 1 to 3 ints"),
    ("input size", _xd(1, 1, 1, 0), ValueError, r"input_size 0 must be an int or 1 ints, each at least 1"),
    ("kernel axes", _xd(1, 1, (3, 3), 8), ValueError, r"kernel_size \(3, 3\) must be an int or 1 ints"),
    ("stride", _xd(1, 1, 3, 8, stride=0), ValueError, r"stride 0"),
    ("dilation", _xd(1, 1, 3, 8, dilation=0), ValueError, r"dilation 0"),
    ("negative padding", _xd(1, 1, 3, 8, padding=-1), ValueError, r"padding -1"),
    ("float kernel", _xd(1, 1, 3.0, 8), ValueError, r"kernel_size 3.0"),
    ("padding name", _xd(1, 1, 3, 8, padding="full"), ValueError, r"padding 'full' must be 'same', 'valid'"),
    ("same with stride", _xd(1, 1, 3, 8, padding="same", stride=2), ValueError, r"'same' needs stride 1"),
    ("mode", _xd(1, 1, 3, 8, padding_mode="constant"), ValueError, r"'constant' is unknown; known: zeros, circular"),
    ("reflect", _xd(1, 1, 3, 4, padding=4, padding_mode="reflect"), ValueError, r"reflect padding .* too wide"),
    ("circular", _xd(1, 1, 3, 4, padding=5, padding_mode="circular"), ValueError, r"circular padding .* too wide"),
    ("groups", _xd(3, 4, 3, 8, groups=2), ValueError, r"groups 2 must divide in_channels 3"),
    ("channels", _xd(0, 4, 3, 8), ValueError, r"in_channels 0 must be a positive int"),
    ("depth", _xd(1, 1, 3, 8, depth=0), ValueError, r"depth 0"),
    ("two depths", _xd(1, 1, 3, 8, depth=(1, 2)), ValueError, r"depth \(1, 2\) must be an int or 3 ints"),
    ("small size", _xd(1, 1, 3, 8, padding=1, size=8), ValueError, r"size 8 is too small.* at least 9"),
    ("size 7", _xd(1, 1, 3, 5, size=7), ValueError, r"size 7 is not 2\^a 3\^b 5\^c; the next that is: 8"),
    ("size name", _xd(1, 1, 3, 5, size="big"), ValueError, r"size 'big' must be None, 'power_of_two'"),
    ("not a conv", lambda: XD.from_conv(nn.Linear(2, 2), 4), TypeError, r"takes a torch.nn.Conv1d.*got Linear"),  # type: ignore[arg-type]
    ("other size", lambda: XD(1, 1, 3, 8)(torch.zeros(1, 1, 9)), ValueError, r"\(1, 1, 9\).*takes \(batch, 1, 8\)"),
    ("channels in", lambda: XD(2, 1, 3, 8)(torch.zeros(1, 1, 8)), ValueError, r"takes \(batch, 2, 8\)"),
    ("no batch", lambda: XD(2, 1, 3, 8)(torch.zeros(2, 8)), ValueError, r"takes \(batch, 2, 8\)"),
    (
        "dtype",
        lambda: XD(1, 1, 3, 8)(torch.zeros(1, 1, 8, dtype=torch.float64)),
        TypeError,
        r"input is torch.float64 and the layer torch.float32",
    ),
    ("compact 1", _xd(1, 1, 3, 8, compact=1), ValueError, r"compact 1 must be True or False"),
    ("compact name", _xd(1, 1, 3, 8, compact="no"), ValueError, r"compact 'no' must be True or False"),
    ("compact None", _xd(1, 1, 3, 8, compact=None), ValueError, r"compact None must be True or False"),
    (
        "compact from conv",
        lambda: XD.from_conv(nn.Conv1d(1, 1, 3), 8, compact=0),  # type: ignore[arg-type]
        ValueError,
        r"compact 0 must be True or False",
    ),
    (
        "inference: no XD layer",
        lambda: for_inference(nn.Sequential(nn.Conv1d(1, 1, 3))),
        ValueError,
        r"the Sequential has no XD layer; it can be used as it is",
    ),
    (
        "inference: twice",
        lambda: for_inference(for_inference(nn.Sequential(XD(1, 1, 3, 8)))),
        ValueError,
        r"the Sequential has no XD layer",
    ),
    ("inference: hook", _hooked(without_grad=False), ValueError, r"weight of layer '0' is made by a hook; remove that"),
    ("inference: hook, no grad", _hooked(without_grad=True), ValueError, r"weight of layer '0' is made by a hook"),
    (
        "inference: size",
        _fixed(torch.zeros(1, 2, 9)),
        ValueError,
        r"\(1, 2, 9\) does not fit; this layer takes \(batch, 2, 8\)",
    ),
    ("inference: channels", _fixed(torch.zeros(1, 1, 8)), ValueError, r"\(1, 1, 8\).*takes \(batch, 2, 8\)"),
    ("inference: no batch", _fixed(torch.zeros(2, 8)), ValueError, r"\(2, 8\).*takes \(batch, 2, 8\)"),
    (
        "inference: dtype",
        _fixed(torch.zeros(1, 2, 8, dtype=torch.float64)),
        TypeError,
        r"input is torch.float64 and the layer torch.float32",
    ),
    (
        "inference of a name",
        lambda: for_inference("model"),  # type: ignore[arg-type]
        TypeError,
        r"for_inference takes a torch.nn.Module, got str",
    ),
    (
        "inference: whole numbers",
        _fixed(torch.zeros(1, 2, 8, dtype=torch.int64), causal=True),
        TypeError,
        r"input is torch.int64 and must be real; convert it, e.g. to torch.float32",
    ),
    (
        "inference: causal channels",
        _fixed(torch.zeros(1, 3, 20), causal=True),
        ValueError,
        r"\(1, 3, 20\).*takes \(batch, 2, any number of steps\)",
    ),
    ("inference: no steps", _fixed(torch.zeros(1, 2, 0), causal=True), ValueError, r"\(1, 2, 0\) has no steps"),
]
