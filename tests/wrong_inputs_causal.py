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


def _step(x: torch.Tensor, batch: int = 2) -> object:
    stepper = XD(3, 4, 3, 8, padding=2, causal=True).stepper()
    return stepper.step(x, stepper.start(batch))


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
    (
        "causal, two axes",
        _xd(True, (8, 9)),
        ValueError,
        r"causal=True is for one axis, and input_size \(8, 9\) has 2",
    ),
    ("stack, three axes", _xd("stack", (8, 9, 3)), ValueError, r"causal='stack' is for one axis, .* has 3; leave"),
    (
        "causal padding",
        _xd(True, padding=1),
        ValueError,
        r"padding=\(kernel_size - 1\) \* dilation=2; given are stride=1, .* padding=\(1,\). Change .* last 2 outputs",
    ),
    ("causal same", _xd("stack", padding="same"), ValueError, r"dilation=2; given .* padding='same'. Change"),
    ("causal dilation", _xd("triangular", dilation=3), ValueError, r"dilation=6; given .* padding=\(2,\)"),
    ("causal stride", _xd(True, stride=2), ValueError, r"needs stride=1, .* given are stride=2"),
    (
        "causal circle",
        _xd(True, padding_mode="circular"),
        ValueError,
        r"given are .*padding_mode='circular'",
    ),
    (
        "triangular reflect",
        _xd("triangular", padding_mode="reflect"),
        ValueError,
        r"given .*padding_mode='reflect'",
    ),
    (
        "compact triangular",
        _xd("triangular", compact=True),
        ValueError,
        r"compact=True keeps half of a spectrum, and causal='triangular' starts without one; leave out one",
    ),
    (
        "steps of other channels",
        lambda: _step(torch.zeros(2, 1)),
        ValueError,
        r"Stepper: x \(2, 1\) does not fit; give one step of every sequence, \(2, 3\)",
    ),
    ("steps of another batch", lambda: _step(torch.zeros(1, 3)), ValueError, r"x \(1, 3\) does not fit"),
    (
        "steps of whole numbers",
        lambda: _step(torch.zeros(2, 3, dtype=torch.int64)),
        TypeError,
        r"x is torch.int64; give",
    ),
    ("wide steps", lambda: _step(torch.zeros(2, 3).double()), TypeError, r"float64; give real numbers of at most"),
    ("steps of no sequence", lambda: _step(torch.zeros(0, 3), 0), ValueError, r"batch 0 must be a positive int"),
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
