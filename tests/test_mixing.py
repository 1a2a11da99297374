"""The mix of the channels is an einsum with complex diagonals, however its frequencies are blocked."""

from collections.abc import Sequence
from itertools import product

import pytest
import torch
from torch import Tensor

from xdnas import mixing
from xdnas.mixing import FixedMixing, Mixing, diagonals, mix
from xdnas.multilinear import Multilinear, evaluate

N, TAPS = 5, 4
Channels = tuple[int, int, int]  # groups, inputs and outputs of a group
CHANNELS: list[Channels] = [(1, 2, 3), (2, 2, 3), (3, 3, 2), (3, 1, 1), (2, 1, 2), (1, 1, 1)]
# less than a frequency, two, all of one lead, those of two leads, everything
LIMITS = [0, 2 * 2, 2 * N, 2 * 2 * N, 1 << 18]
SIZES = [[1] * 15, [2, 2, 1] * 3, [5] * 3, [10, 5], [15]]


def close(a: Tensor | None, b: Tensor) -> None:
    assert a is not None
    assert a.shape == b.shape
    if b.numel():
        assert (a - b).abs().max() <= 1e-12 * b.abs().max()


def draw(*shape: int) -> Tensor:
    """Random numbers, in a layout that is not contiguous."""
    values = torch.randn(*reversed(shape), dtype=torch.float64)
    return values.permute(*reversed(range(len(shape)))).requires_grad_()


def made(side: Tensor, taps: Tensor) -> Tensor:
    """The diagonals (F, 2, pairs)."""
    sides = side.expand(taps.shape[0], -1, -1).unflatten(1, (N, 2))
    return torch.einsum("lnck,lkp->lncp", sides, taps).flatten(0, 1)


def mixed(x: Tensor, diagonals: Tensor, channels: Channels) -> Tensor:
    """The complex sum over the input channels of each group."""
    signal = torch.complex(*x.unbind(1)).unflatten(2, channels[:2])
    factors = torch.complex(*diagonals.unbind(1)).unflatten(1, channels)
    y = torch.einsum("fbgi,fgio->fbgo", signal, factors).flatten(2)
    return torch.stack((y.real, y.imag), 1)


def check(map: Multilinear, arguments: Sequence[Tensor], wanted: Tensor) -> None:
    """The value, and the gradients for every choice of those that are needed."""
    y = evaluate(map, *arguments)
    close(y, wanted)
    cotangent = draw(*y.shape).detach()
    by_twin = torch.autograd.grad(wanted, arguments, cotangent, retain_graph=True)
    for each, twin in zip(torch.autograd.grad(y, arguments, cotangent), by_twin, strict=True):
        close(each, twin)
    for needed in product([False, True], repeat=len(arguments)):
        with torch.no_grad():
            result = map.gradients(cotangent, needed, *arguments)
        assert [own is not None for own in result] == list(needed)
        for own, twin in zip(result, by_twin, strict=True):
            close(twin if own is None else own, twin)


def set_block(monkeypatch: pytest.MonkeyPatch, limit: int, pairs: int) -> None:
    """Numbers of the diagonals of one pair at a time."""
    monkeypatch.setattr(mixing, "BLOCK", max(1, limit * pairs))


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize(("lead", "shared"), [(1, True), (3, True), (3, False)])
@pytest.mark.parametrize("channels", CHANNELS)
def test_made_diagonals(
    limit: int, lead: int, shared: bool, channels: Channels, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups, own_in, own_out = channels
    pairs = groups * own_in * own_out
    set_block(monkeypatch, limit, pairs)
    side, taps = draw(1 if shared else lead, 2 * N, TAPS), draw(lead, TAPS, pairs)
    wanted = made(side, taps)
    close(diagonals(side, taps), wanted)
    for batch in (0, 1, 3):
        x = draw(lead * N, 2, batch, groups * own_in)
        check(Mixing(groups), (x, side, taps), mixed(x, wanted, channels))


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("batch", [0, 1, 3])
def test_given_diagonals(limit: int, channels: Channels, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    groups, own_in, own_out = channels
    set_block(monkeypatch, limit, groups * own_in * own_out)
    x, given = draw(N, 2, batch, groups * own_in), draw(N, 2, groups * own_in * own_out)
    wanted = mixed(x, given, channels)
    check(FixedMixing(groups), (x, given), wanted)
    y = mix(x, given, groups)
    close(y, wanted)
    cotangent = torch.randn_like(y)
    by_twin = torch.autograd.grad(wanted, (x, given), cotangent)
    for own, twin in zip(torch.autograd.grad(y, (x, given), cotangent), by_twin, strict=True):
        close(own, twin)


@pytest.mark.parametrize(("limit", "sizes"), list(zip(LIMITS, SIZES, strict=True)))
def test_blocks_are_all_frequencies_in_order(limit: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    set_block(monkeypatch, limit, 6)
    blocks = list(mixing._blocks(torch.empty(3, 1, 6), N))
    frequencies, side = torch.arange(3 * N), torch.arange(3 * 2 * N).view(3, 2 * N)
    parts = [block.of(frequencies, N) for block in blocks]
    assert [len(part) for part in parts] == sizes
    assert torch.equal(torch.cat(parts), frequencies)
    for block, part in zip(blocks, parts, strict=True):
        assert torch.equal(block.side(side).flatten(), torch.stack((2 * part, 2 * part + 1), 1).flatten())
