"""The sections of the page: what is measured for each, and its table."""

import math
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from layers import BURGERS, DARCY, GROWTH, LARGE, LAYERS, MUSIC, PDE, Row, example
from measure import inference_step, interleaved, peak_memory, threads, training_step
from tables import Report, milliseconds, ratio, times
from torch import Tensor, nn

TRAINED = ("convolution", "full", "compact", "floor", "spectral")


class Plan(NamedTuple):
    """What to measure and for how long: rounds and seconds for each row, thread counts, rows and layers by name."""

    repeats: int
    seconds: float
    threads: Sequence[int]
    rows: Sequence[str]
    layers: Sequence[str]

    def chosen(self, rows: Sequence[Row]) -> list[Row]:
        """Those of `rows` that are to be measured."""
        return [row for row in rows if row.name in self.rows]

    def wanted(self, *layers: str) -> list[str]:
        """Those of `layers` that are to be measured; the convolution always is."""
        return [layer for layer in layers if layer in self.layers or layer == "convolution"]


def training(report: Report, plan: Plan, rows: Sequence[Row]) -> None:
    """Forward and backward of every row."""
    report.section(
        "Training",
        "Forward and backward, gradients of the input and of every parameter. *Floor*: the same convolution by the "
        "library's real FFT (`benchmarks/fourier.py`). *Fourier layer*: `neuralop.SpectralConv` with as many modes of "
        "each sign as the paper's Fourier layers keep (16; 12 x 12; 8 x 8 x 8): another, smaller operation. *Error*: "
        "of the full and the compact form's outputs, the larger one, relative to the convolution's. "
        "*Published code*: its own multiple of the convolution, on one thread of another machine.",
        "layer | input | kernel | threads | convolution, ms | full form | published code | compact form | "
        "compact of full | compact of floor | floor | Fourier layer | error",
    )
    for row in plan.chosen(rows):
        for count in plan.threads:
            _training_row(report, plan, row, count)


def _training_row(report: Report, plan: Plan, row: Row, count: int) -> None:
    layers = _built(report, plan.wanted(*TRAINED), row)
    x = example(row)
    error = _error(layers, x)
    with threads(count):
        seconds = interleaved(
            {name: training_step(layer, x) for name, layer in layers.items()}, plan.repeats, plan.seconds
        )
    where = _where(count)
    full, compact, floor, spectral = (ratio(seconds, name, "convolution") for name in TRAINED[1:])
    report.row(
        row.name,
        str(row.shape),
        _kernel(row),
        str(count),
        milliseconds(seconds["convolution"]),
        report.bounded(f"{row.name}: full form", where, full, row.bound),
        "-" if row.published is None or count > 1 else f"{row.published:g}x",
        times(compact),
        report.bounded(f"{row.name}: compact of full", where, ratio(seconds, "compact", "full"), 0.65),
        report.bounded(f"{row.name}: compact of floor", where, ratio(seconds, "compact", "floor"), 3),
        times(floor),
        times(spectral),
        f"{error:.0e}",
    )


def _built(report: Report, names: Sequence[str], row: Row) -> dict[str, nn.Module]:
    layers = {}
    for name in names:
        if name != "spectral":
            layers[name] = LAYERS[name](row)
        elif row.modes is not None:
            try:
                layers[name] = LAYERS[name](row)
            except ModuleNotFoundError as error:
                report.note(f"no Fourier layer was measured: {error}. `make bench` installs what it needs.")
    return layers


def _error(layers: Mapping[str, nn.Module], x: Tensor, *, forms: Sequence[str] = ("full", "compact")) -> float:
    """The largest error of the forms; the floor must compute the convolution or it is none."""
    errors = {}
    with torch.no_grad():
        right = layers["convolution"](x)
        for name in (*forms, "floor"):
            if name in layers:
                y = layers[name](x)
                errors[name] = float((y - right[..., : y.shape[-1]]).norm() / right.norm())
    wrong = {name: error for name, error in errors.items() if error > 1e-4}
    if wrong:
        raise ArithmeticError(f"not the convolution that they stand beside: {wrong}")
    return max((errors[name] for name in forms if name in errors), default=math.nan)


def inference(report: Report, plan: Plan) -> None:
    """The inference copy against the convolution."""
    report.section(
        "Inference",
        "Forward without gradients: `xdnas.for_inference(layer)` of the full form.",
        "layer | threads | convolution, ms | inference copy | full form",
    )
    for row in plan.chosen((BURGERS, DARCY)):
        for count in plan.threads:
            layers = _built(report, plan.wanted("convolution", "inference", "full"), row)
            x = example(row).detach()
            with threads(count):
                steps = {name: inference_step(layer, x) for name, layer in layers.items()}
                seconds = interleaved(steps, plan.repeats, plan.seconds)
            copy = ratio(seconds, "inference", "convolution")
            report.row(
                row.name,
                str(count),
                milliseconds(seconds["convolution"]),
                report.bounded(f"{row.name}: inference copy", _where(count), copy, 1),
                times(ratio(seconds, "full", "convolution")),
            )


def memory(report: Report, plan: Plan) -> None:
    """Peak memory of a training step."""
    report.section(
        "Peak memory of a training step",
        "Each layer in a fresh process on one thread: after one step as a warm-up, the highest resident memory of the "
        "process during a second step, above the memory before it. It holds what the C++ code takes for itself as well "
        "as tensors; the C library gives freed blocks back at once (`MALLOC_MMAP_THRESHOLD_`).",
        "layer | convolution, MB | full form | compact form | floor | Fourier layer",
    )
    names = plan.wanted("convolution", "full", "compact", "floor", "spectral")
    for row in plan.chosen(PDE):
        peaks = _peaks(report, row, _built(report, names, row))
        full, *others = (ratio(peaks, name, "convolution") for name in ("full", "compact", "floor", "spectral"))
        report.row(
            row.name,
            _megabytes(peaks, "convolution"),
            report.bounded(f"{row.name}: memory of full form", "1 thread", full, 4),
            *map(times, others),
        )


def _peaks(report: Report, row: Row, names: Iterable[str]) -> dict[str, float]:
    try:
        return {name: float(peak_memory(row.name, name)) for name in names}
    except (OSError, subprocess.CalledProcessError) as error:
        report.note(f"no memory of {row.name} was measured: {error}.")
        return {}


def growth(report: Report, plan: Plan) -> None:
    """Time against size."""
    report.section(
        "Growth with the size",
        "Forward and backward on one thread, kernel 17 and 13, circular. Times as multiples of the convolution's.",
        "layer | input | convolution, ms | full form | compact form | floor",
    )
    names = plan.wanted("convolution", "full", "compact", "floor")
    taken: dict[str, list[float]] = {name: [] for name in names}
    for row in (*GROWTH, *LARGE):
        layers, x = _built(report, names, row), example(row)
        _error(layers, x)
        with threads(1):
            steps = {name: training_step(layer, x) for name, layer in layers.items()}
            seconds = interleaved(steps, plan.repeats, plan.seconds)
        multiples = [times(ratio(seconds, name, "convolution")) for name in ("full", "compact", "floor")]
        report.row(row.name, str(row.shape), milliseconds(seconds["convolution"]), *multiples)
        for name in names if row in GROWTH else ():
            taken[name].append(seconds[name])
    sizes = np.log([row.size[0] for row in GROWTH])
    exponents = {name: float(np.polyfit(sizes, np.log(seconds), 1)[0]) for name, seconds in taken.items()}
    bound = report.bounded("1-d: exponent of full form", "1 thread", exponents.pop("full", None), 1.3, unit="")
    others = ", ".join(f"{name} {value:.2f}" for name, value in exponents.items())
    report.text(f"Exponent of the time against n in 1-d, fitted over the four sizes: full form {bound}; {others}.")


def causal(report: Report, plan: Plan) -> None:
    """The causal layer against the stack of prefixes and the plain layer."""
    report.section(
        "Causal layers",
        'Training as above. *Causal*: `causal=True`; *stack*: `causal="stack"`, every prefix a separate example, as '
        "the published code does; *plain*: the full form, which sees the future. Memory as above.",
        "layer | threads | plain, ms | causal | stack | causal of stack | "
        "plain, MB | causal, MB | stack, MB | memory of stack's",
    )
    names = ["full", *(name for name in ("causal", "stack") if name in plan.layers)]
    for row in plan.chosen(MUSIC):
        peaks = _peaks(report, row, names)
        for count in plan.threads:
            layers, x = _built(report, ["convolution", *names], row), example(row)
            _error(layers, x, forms=names)
            with threads(count):
                steps = {name: training_step(layers[name], x) for name in names}
                seconds = interleaved(steps, plan.repeats, plan.seconds)
            spent, share = ratio(seconds, "causal", "stack"), ratio(peaks, "causal", "stack")
            first = count == plan.threads[0]
            report.row(
                row.name,
                str(count),
                milliseconds(seconds["full"]),
                times(ratio(seconds, "causal", "full")),
                times(ratio(seconds, "stack", "full")),
                report.bounded(f"{row.name}: causal of stack", _where(count), spent, 1),
                *(_megabytes(peaks, name) if first else "" for name in ("full", "causal", "stack")),
                report.bounded(f"{row.name}: memory of causal", "1 thread", share, 0.1) if first else "",
            )


def _kernel(row: Row) -> str:
    gates = ", b and C" if row.gates else ""
    depth = f", depth {row.depth}" if row.depth else ""
    return f"{row.kernel}, {row.padding_mode}{gates}{depth}"


def _where(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"


def _megabytes(peaks: Mapping[str, float], name: str) -> str:
    return f"{peaks[name] / 1e6:.1f}" if name in peaks else "-"
