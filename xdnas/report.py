"""What a swap would do or did, as data and as a table."""

import io
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


class SwapError(ValueError):
    """A swap or restore that cannot be done. The model is exactly as it was before the call."""


@dataclass(frozen=True)
class Layer:
    """One convolution of the model (or one XD layer, when it was there before).

    Attributes:
        name: its dotted name; a shared layer has its first one here and all of them in `names`.
        kind: name of its class.
        swapped: whether this call made it an XD layer (in a plan: would make).
        reason: why not, in words; for a swapped layer a remark or nothing.
        kernel_size: of the convolution.
        input_size, output_size: spatial sizes; empty when the sample never reached the layer.
        n: padded size of each axis, the sizes of its K-matrices.
        added: real numbers in K, L, M, b and C.
        multiply_adds: real multiply-adds of the convolution for the sample input.
        xd_multiply_adds: the same of the XD layer, factor by factor, complex products counted as four.
        error: largest difference from the convolution over the whole output, relative to the largest output;
            in a restore: relative distance of the two as operators. None when not measured.
    """

    name: str
    kind: str
    swapped: bool
    reason: str = ""
    names: tuple[str, ...] = ()
    kernel_size: tuple[int, ...] = ()
    input_size: tuple[int, ...] = ()
    output_size: tuple[int, ...] = ()
    n: tuple[int, ...] = ()
    added: int = 0
    multiply_adds: int = 0
    xd_multiply_adds: int = 0
    error: float | None = None


@dataclass(frozen=True)
class Report:
    """What `plan`, `swap` or `restore` found: one `Layer` each, and the error of the whole model.

    `error` is the largest difference of the model's output from before, relative to its largest value (the worst of
    several output tensors); None in a plan and when the output holds no floating-point tensor. In a restore it is the
    largest distance of a layer.
    Print it, or take `table()` for rich.
    """

    action: str
    layers: tuple[Layer, ...]
    tolerance: float
    error: float | None = None

    @property
    def swapped(self) -> tuple[Layer, ...]:
        """The layers that this call replaced (or, in a plan, would replace) by XD layers."""
        return tuple(layer for layer in self.layers if layer.swapped)

    @property
    def added(self) -> int:
        """Real numbers added by the swapped layers."""
        return sum(layer.added for layer in self.swapped)

    def layer(self, name: str) -> Layer:
        """The layer of that name (any of its names); ValueError with the names there are otherwise."""
        for layer in self.layers:
            if name == layer.name or name in layer.names:
                return layer
        raise ValueError(f"no layer {name!r} in this report; it has {quoted(layer.name for layer in self.layers)}")

    def table(self) -> "Table":
        """A rich table, one row per layer and a line of totals."""
        from rich.table import Table

        table = Table(title=self._title(), caption=self._totals())
        for column in ("layer", "type", self.action):
            table.add_column(column, overflow="fold")
        for column in ("kernel", "input", "output", "n", "added", "madds", "XD madds", "error"):
            table.add_column(column, justify="right", overflow="fold")
        table.add_column("why", overflow="fold")
        for layer in self.layers:
            table.add_row(*_cells(layer, replaced=layer in self._replaced()))
        return table

    def _replaced(self) -> tuple[Layer, ...]:
        return self.layers if self.action == "restored" else self.swapped

    def _title(self) -> str:
        return f"{len(self._replaced())} of {len(self.layers)} layers {self.action}"

    def _totals(self) -> str:
        before = sum(layer.multiply_adds for layer in self.swapped)
        after = sum(layer.xd_multiply_adds for layer in self.swapped)
        cost = f"{self.added:,} parameters added; multiply-adds {count(before)} before, {count(after)} after"
        if self.action == "restored":
            return "" if self.error is None else f"largest distance {self.error:.1e} (tolerance {self.tolerance:g})"
        measured = "nothing measured yet" if self.error is None else f"error of the whole model {self.error:.1e}"
        return f"{cost}; {measured} (tolerance {self.tolerance:g})"

    def __rich__(self) -> "Table":
        return self.table()

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(file=io.StringIO(), width=160)
        with console.capture() as captured:
            console.print(self.table())
        return captured.get()


def _cells(layer: Layer, *, replaced: bool) -> list[str]:
    from rich.markup import escape

    numbers = [str(layer.added) if layer.added else "", count(layer.multiply_adds), count(layer.xd_multiply_adds)]
    shapes = [by(layer.kernel_size), by(layer.input_size), by(layer.output_size), by(layer.n)]
    error = "" if layer.error is None else f"{layer.error:.1e}"
    names = ", ".join(layer.names or (layer.name,))
    return [escape(names), layer.kind, "yes" if replaced else "no", *shapes, *numbers, error, escape(layer.reason)]


def by(size: Iterable[int]) -> str:
    """Sizes as text, "32x32"."""
    return "x".join(str(n) for n in size)


def count(number: int) -> str:
    """A large count with three digits: "1.23G"; nothing for zero."""
    if number < 1000:
        return str(number) if number else ""
    power = min(int(math.log10(number)) // 3, 4)
    return f"{number / 1000**power:.3g}{' kMGT'[power]}"


def quoted(names: Iterable[str], limit: int = 12) -> str:
    """Names for an error message: quoted, the first few when there are many."""
    names = list(names)
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(repr(name) for name in names[:limit]) + more if names else "none"
