"""The causal XD-operation as a linear recurrence: one step at a time in constant memory, for generation."""

from typing import NamedTuple

import torch
from torch import Tensor

from xdnas.causal import hop, real_taps
from xdnas.geometry import is_int
from xdnas.precision import full_precision


class State(NamedTuple):
    """What a causal layer remembers between two steps; its size does not grow with the steps."""

    step: int
    """Steps taken so far."""
    sums: Tensor
    """(windows, B, I, F): M applied to what each open window has seen, the newest window first."""


class Stepper:
    """A causal layer, one step at a time; equals `windows` over `masked` on the steps so far, whatever their number.

    The state is all that is kept, unless gradients are asked for: then it holds the graph of all steps.

    Args:
        K, L, W, M: as in `xdnas.causal.masked`; the columns of M are the steps of a window (its history H), and K has
            a row for each.
        bias: real (O,) or None.
        groups: groups of channels, as in torch.nn.Conv1d.
    """

    def __init__(self, K: Tensor, L: Tensor, W: Tensor, M: Tensor, bias: Tensor | None = None, groups: int = 1) -> None:
        self.history = M.shape[1]
        self.hop = hop(self.history)
        self.open = -(-self.history // self.hop)
        self.K, self.bias, self.groups = K, bias, groups
        self.L, self.W = real_taps(L, W)
        # a window that has ended takes in nothing more
        self.M = torch.nn.functional.pad(M, (0, self.open * self.hop - self.history))

    def start(self, batch: int) -> State:
        """The state before the first step.

        Raises:
            ValueError: batch is not a positive int.
        """
        if not is_int(batch) or batch < 1:
            raise ValueError(f"Stepper: batch {batch!r} must be a positive int, the number of sequences")
        inputs, frequencies = self.W.shape[1] * self.groups, self.M.shape[0]
        return State(0, self.M.new_zeros(self.open, batch, inputs, frequencies))

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """The next input (B, I) to the next output (B, O), both real of one dtype, and the state behind it.

        Raises:
            ValueError: x does not fit the layer's inputs or the batch of the state.
            TypeError: x is not real, or of a wider dtype than the layer.
        """
        with full_precision(x):
            return self._step(x, state)

    def _step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        t, sums = state
        if x.shape != sums.shape[1:3]:
            raise ValueError(
                f"Stepper: x {tuple(x.shape)} does not fit; give one step of every sequence, {tuple(sums.shape[1:3])}, "
                "or begin another batch with start(batch)"
            )
        kept = sums.real.dtype
        if not x.is_floating_point() or torch.promote_types(x.dtype, kept) != kept:
            raise TypeError(f"Stepper: x is {x.dtype}; give real numbers of at most {kept}")
        begun, age = divmod(t, self.hop)
        if age == 0:
            sums = torch.cat((torch.zeros_like(sums[:1]), sums[:-1]))
        arriving = self.M[:, age :: self.hop].T[:, None, None]  # (windows, 1, 1, F)
        sums = sums + arriving * x[:, :, None]
        window = 0 if t < self.history else (t - self.history + self.hop) // self.hop
        y = self._output(sums[begun - window], t - window * self.hop)
        return y.to(x.dtype), State(t + 1, sums)

    def _output(self, sums: Tensor, row: int) -> Tensor:
        """Real(K[row] D sums) + bias: (B, I, F) to (B, O)."""
        taps = (sums @ (self.K[row, :, None] * self.L)).real
        weights = self.W.unflatten(2, (self.groups, -1))
        y = torch.einsum("bgir,rigo->bgo", taps.unflatten(1, (self.groups, -1)), weights).flatten(1)
        return y if self.bias is None else y + self.bias
