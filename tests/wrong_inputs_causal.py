"""What the causal forms refuse, and what they say."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from xdnas import XD, KMatrix
from xdnas.causal import causal_stack


def _stack(x: Tensor, history: object) -> Callable[[], object]:
    return lambda: causal_stack(torch.nn.Identity(), x, history)  # type: ignore[arg-type]


def _xd(causal: object, input_size: Any = 8, padding: Any = 2, **options: Any) -> Callable[[], object]:
    return lambda: XD(2, 2, 3, input_size, padding=padding, causal=causal, **options)  # type: ignore[arg-type]


def _call(x: Tensor) -> Callable[[], object]:
    return lambda: XD(2, 2, 3, 8, padding=2, causal=True)(x)


ROWS: list[tuple[str, Callable[[], object], type[Exception], str]] = [
    ("history 0", _stack(torch.zeros(1, 2, 5), 0), ValueError, r"history 0 must be a positive int"),
    ("history 2.5", _stack(torch.zeros(1, 2, 5), 2.5), ValueError, r"history 2.5 must be a positive int"),
    ("stack of two axes", _stack(torch.zeros(2, 5), 3), ValueError, r"\(2, 5\) must have shape \(batch, channels, st"),
    (
        "stack of a flat model",
        lambda: causal_stack(torch.nn.Flatten(), torch.zeros(1, 2, 5), 3),
        ValueError,
        r"returned \(5, 6\) for 5 windows; it must return one \(channels, steps\)",
    ),
    (
        "triangular dft",
        lambda: KMatrix(8, triangular=True),
        ValueError,
        r"init 'dft' is not lower triangular; with triangular=True give identity, first, random",
    ),
    ("triangular idft", lambda: KMatrix(8, 2, "idft", triangular=True), ValueError, r"init 'idft' is not lower tri"),
    (
        "triangular permutation",
        lambda: KMatrix(2, 2, [1, 0], triangular=True),
        ValueError,
        r"init 'permutation' is not lower triangular",
    ),
    ("causal name", _xd("yes"), ValueError, r"causal 'yes' must be one of False, True, 'stack', 'triangular'"),
    ("causal 1", _xd(1), ValueError, r"causal 1 must be one of False, True"),
    ("causal None", _xd(None), ValueError, r"causal None must be one of False, True"),
    ("causal list", _xd(["stack"]), ValueError, r"causal \['stack'\] must be one of"),
    ("causal, two axes", _xd(True, (8, 9)), ValueError, r"causal is for one axis; input_size \(8, 9\) has 2"),
    ("stack, three axes", _xd("stack", (8, 9, 3)), ValueError, r"causal is for one axis; .* has 3"),
    (
        "causal padding",
        _xd(True, padding=1),
        ValueError,
        r"pads \(kernel_size - 1\) \* dilation = 2 zeros and has stride 1; given are padding=\(1,\).*Pad by 2 and "
        r"leave out the last 2",
    ),
    ("causal same", _xd("stack", padding="same"), ValueError, r"= 2 zeros .* padding='same'"),
    ("causal dilation", _xd("triangular", dilation=3), ValueError, r"= 6 zeros .* padding=\(2,\)"),
    ("causal stride", _xd(True, stride=2), ValueError, r"has stride 1; .* stride=\(2,\)"),
    ("causal circle", _xd(True, padding_mode="circular"), ValueError, r"zeros .* padding_mode='circular'"),
    ("triangular reflect", _xd("triangular", padding_mode="reflect"), ValueError, r"zeros .* padding_mode='reflect'"),
    (
        "compact triangular",
        _xd("triangular", compact=True),
        ValueError,
        r"compact keeps half of a spectrum, and causal='triangular' starts without one",
    ),
    (
        "stepper",
        lambda: XD(2, 2, 3, 8, padding=2).stepper(),
        ValueError,
        r"only a causal layer goes step by step; make it with causal=True",
    ),
    ("no steps", _call(torch.zeros(1, 2, 0)), ValueError, r"\(1, 2, 0\) has no steps; .* takes one or more"),
    ("causal channels", _call(torch.zeros(1, 3, 5)), ValueError, r"takes \(batch, 2, any number of steps\)"),
    ("causal, no batch", _call(torch.zeros(2, 5)), ValueError, r"\(2, 5\).*takes \(batch, 2, any number of steps\)"),
    (
        "causal dtype",
        _call(torch.zeros(1, 2, 5, dtype=torch.float64)),
        TypeError,
        r"float64 and the layer torch.float32",
    ),
]
