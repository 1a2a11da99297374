"""What the causal forms refuse, and what they say."""

from collections.abc import Callable

import torch
from torch import Tensor

from xdnas import KMatrix
from xdnas.causal import causal_stack


def _stack(x: Tensor, history: object) -> Callable[[], object]:
    return lambda: causal_stack(torch.nn.Identity(), x, history)  # type: ignore[arg-type]


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
]
