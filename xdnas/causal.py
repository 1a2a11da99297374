"""The causal XD-operation: its real matrix masked to the lower triangle.

For any K, M and diagonal, output u of the masked operation is Real(K[u] sum_j C diag(L w + b) z_u), where z_u is M
applied to the inputs up to u alone. Written by taps, D = C (L w + b) = sum_a L[:, a] W[a] with few a, the mask falls on
one small matrix per tap and channels are mixed as in a convolution:

    y = sum_a W[a]^T tril(Real(K diag(L[:, a]) M)) x

b is one more tap, whose column is b and whose weight is C. No step sees a later one, not even through rounding.

Shapes: B batch, I inputs, O outputs, G groups, F frequencies, R taps, T input steps, U output steps.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from xdnas.geometry import is_int
from xdnas.multilinear import product


def real_taps(L: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
    """The same taps with real weights: Real(W v) = Re W Real(v) + Im W Real(i v); (F, R), (R, I / G, O) or 2 R each."""
    if not W.is_complex():
        return L, W
    return torch.cat((L, 1j * L), 1), torch.cat((W.real, W.imag))


def lower_matrices(K: Tensor, L: Tensor, M: Tensor) -> Tensor:
    """tril(Real(K diag(L[:, a]) M)) for every tap: complex (U, F), (F, R), (F, T) to real (U, R, T)."""
    right = (L[:, :, None] * M[:, None]).flatten(1)
    full = product(K.real, right.real) - product(K.imag, right.imag)
    return lower_part(full.view(K.shape[0], L.shape[1], M.shape[1]))


def lower_part(matrices: Tensor) -> Tensor:
    """(U, R, T), zeros where T is behind U."""
    outputs, _, steps = matrices.shape
    seen = torch.ones(outputs, steps, dtype=torch.bool, device=matrices.device).tril()
    return torch.where(seen[:, None], matrices, 0.0)


def masked(x: Tensor, K: Tensor, L: Tensor, W: Tensor, M: Tensor, groups: int = 1) -> Tensor:
    """The operation masked to its lower triangle: real (B, I, T) to real (B, O, U).

    y[b, o, u] = Real(sum_f K[u, f] sum_i D[f, i, o] sum_{s <= u} M[f, s] x[b, i, s]), D = L W. Steps behind T count as
    zeros. An input that is not finite, or whose products with the weights are not, makes the outputs of its group NaN
    from its step on, and no output before it.

    Args:
        x: real (B, I, T).
        K, L, M: complex (U, F), (F, R) and (F, T).
        W: real or complex (R, I / groups, O); real weights take half of the work.
        groups: groups of channels, as in torch.nn.Conv1d.
    """
    L, W = real_taps(L, W)
    return apply_lower(x, lower_matrices(K, L, M), W, groups)


def apply_lower(x: Tensor, lower: Tensor, W: Tensor, groups: int) -> Tensor:
    """`masked` from its `lower_matrices` (U, R, T) and real weights (R, I / groups, O)."""
    (batch, inputs, steps), outputs, length = x.shape, W.shape[2], lower.shape[0]
    own, made = inputs // groups, outputs // groups
    rows = x.reshape(batch, groups, own, steps).permute(1, 3, 0, 2).reshape(groups, 1, steps * batch, own)
    weights = W.reshape(W.shape[0], own, groups, made).permute(2, 0, 1, 3)
    mixed = product(rows, weights).view(groups, W.shape[0], steps, batch, made)
    # a product with the mask's zeros would spread what is not finite to earlier steps
    finite = torch.where(mixed.isfinite(), mixed, 0.0).flatten(1, 2).flatten(2)
    y = product(lower.flatten(1), finite).view(groups, length, batch, made).permute(2, 0, 3, 1)
    return (y + _spread(mixed, length)).flatten(1, 2)


def _spread(mixed: Tensor, length: int) -> Tensor:
    """(B, G, 1, length): 0, and NaN from the first step on at which (G, R, T, B, O / G) is not finite in a group."""
    marks: Tensor = 0 * torch.linalg.vector_norm(mixed.detach(), torch.inf, dim=(1, 4))
    last = torch.arange(length, device=mixed.device).clamp(max=mixed.shape[2] - 1)
    return marks.cumsum(1)[:, last].permute(2, 0, 1)[:, :, None]


def stacked(x: Tensor, K: Tensor, L: Tensor, W: Tensor, M: Tensor, groups: int = 1) -> Tensor:
    """The values of `masked` by brute force, U times the work: the paper's causal stack of one layer.

    Every prefix of x, with zeros behind it, is an example of its own through the unmasked operation, of whose outputs
    only the one at the end of the prefix is used (Roberts et al. 2021, Appendix on music modelling).
    """
    (batch, inputs, steps), length = x.shape, K.shape[0]
    seen = torch.ones(length, steps, dtype=torch.bool, device=x.device).tril()
    prefixes = torch.where(seen[:, None], x[:, None], 0.0)  # (B, U, I, T)
    spectrum = (prefixes.to(M.dtype) @ M.mT).reshape(batch, length, groups, inputs // groups, M.shape[0])
    diagonal = (L @ W.to(L.dtype).flatten(1)).reshape(M.shape[0], inputs // groups, groups, W.shape[2] // groups)
    mixed = torch.einsum("bugif,figo->bugof", spectrum, diagonal).flatten(2, 3)
    y = (mixed @ K.mT).real  # (B, U, O, U)
    return y.diagonal(dim1=1, dim2=3)


def hop(history: int) -> int:
    """Steps from one window of a long input to the next."""
    return max(1, history // 2)


def windows(x: Tensor, history: int, tail: int, function: Callable[[Tensor], Tensor]) -> Tensor:
    """A causal function of at most `history` steps on an input of any length: (B, I, T) to (B, O, T + tail).

    Up to T = history the input is one window. A longer one is cut into windows of `history` steps, one every
    h = max(1, history // 2) steps, with zeros behind T. Output t comes from window 0 where t < history, otherwise from
    window floor((t - history + h) / h): it sees at least history - h steps before it and at most history - 1. So a
    layer that is a convolution over at most history - h + 1 steps is that convolution on inputs of any length.

    Args:
        x: real (B, I, T).
        history: the most steps that `function` takes.
        tail: outputs behind the last step, as torch.nn.Conv1d with padding `tail` has.
        function: maps (B', I, N) to (B', O, N + tail), N <= history; gets all windows as one batch.
    """
    batch, inputs, steps = x.shape
    if steps <= history:
        return function(x)
    step = hop(history)
    count = 1 - (history - steps - tail) // step
    padded = torch.nn.functional.pad(x, (0, (count - 1) * step + history - steps))
    cut = padded.unfold(2, history, step).transpose(1, 2)  # (B, count, I, history)
    y = function(cut.reshape(batch * count, inputs, history)).unflatten(0, (batch, count))
    later = y[:, 1:, :, history - step : history].transpose(1, 2).flatten(2)
    return torch.cat((y[:, 0, :, :history], later), 2)[:, :, : steps + tail]


def causal_stack(model: Callable[[Tensor], Tensor], x: Tensor, history: int) -> Tensor:
    """Make a model causal from outside: (B, C, T) to (B, C_out, T), with T times the work.

    For every step the model gets a window of its own, the last `history` steps up to it with zeros before the first,
    all windows as one batch (B T, C, history); the last output step of each is kept. This is how the paper trains its
    music models (Roberts et al. 2021), with 40 steps.

    Raises:
        ValueError: history is not a positive int, x has not three axes, or the model returns no (B T, C_out, steps).
    """
    if not is_int(history) or history < 1:
        raise ValueError(f"causal_stack: history {history!r} must be a positive int")
    if x.dim() != 3:
        raise ValueError(f"causal_stack: the input {tuple(x.shape)} must have shape (batch, channels, steps)")
    batch, channels, steps = x.shape
    cut = torch.nn.functional.pad(x, (history - 1, 0)).unfold(2, history, 1).transpose(1, 2)
    y = model(cut.reshape(batch * steps, channels, history))
    if y.dim() != 3 or y.shape[0] != batch * steps or y.shape[2] < 1:
        raise ValueError(
            f"causal_stack: the model returned {tuple(y.shape)} for {batch * steps} windows; it must return one "
            "(channels, steps) for each"
        )
    return y[:, :, -1].view(batch, steps, y.shape[1]).transpose(1, 2)
