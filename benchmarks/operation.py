"""What an XD layer costs, beside the convolution that it replaces: time, memory, growth with the size.

python benchmarks/operation.py --write               # all of it, kept as benchmarks/results/operation.md
python benchmarks/operation.py --rows burgers jsb    # the training table of these rows
python benchmarks/operation.py --sections growth
python benchmarks/operation.py --profile burgers     # where the time of one step goes
"""

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from layers import LAYERS, ROWS, example
from measure import threads, training_step
from sections import Plan, causal, growth, inference, memory, training
from tables import Report, page

from xdnas.files import write_atomic

RESULTS = Path(__file__).parent / "results" / "operation.md"
T = TypeVar("T", int, float)
SECTIONS = ("training", "inference", "memory", "growth", "causal")
# why a bound was missed, by the name that the page gives it
SMALL_CHANNELS = (
    "With 16 channels transforms are most of the work: 6.4 GFLOP (9 with zero padding) of a step, at about 70 GFLOP/s, "
    "beside a convolution of 3 x 3 taps that takes 1.8 GFLOP. Tried: keeping what is transformed for the gradients "
    "instead of computing it again, other chunks, complex products, three real products for a complex one."
)
LONG_AXIS = (
    "On a long axis the kept part of the spectrum is more than half (105 of 180 frequencies), and making the matrices "
    "costs as much as in the full form. Tried: other block sizes."
)
WHY = {
    "burgers: full form": (
        "A second thread shortens the products, not the four passes of the signal through memory, and what else the "
        "machine does decides: runs of the same code on two threads gave 1.07 to 1.48. Tried: larger blocks and chunks."
    ),
    "cifar: full form": SMALL_CHANNELS,
    "cifar-zeros: full form": SMALL_CHANNELS,
    "jsb: full form": (
        "The mix of channels alone multiplies 2.2 times as much as the convolution (45 complex frequencies against 41 "
        "steps of two taps), in products of 118 x 300 by 300 x 150 numbers that run at about 45 GFLOP/s where the "
        "convolution reaches 70. Tried: complex products, three real products for a complex one, mixing by taps, other "
        "blocks."
    ),
    "nottingham: full form": (
        "Copies of the signal do not go faster with a second thread as products do; other runs of the same code on two "
        "threads gave 1.9 to 2.1. Tried: larger blocks and chunks."
    ),
    "burgers: compact of full": (
        "Copies of the signal do not shrink by half as products do; other runs of the same code gave 0.60 to 0.63. "
        "Tried: larger blocks and chunks."
    ),
    "sequence: full form": (
        "With one example the time is that of making the diagonals of all pairs of channels, in steps of some "
        "milliseconds that other work on the machine disturbs; other runs of the same code gave 16. Tried: other "
        "blocks."
    ),
    "burgers: inference copy": (
        "1.7 GFLOP of products at 50 to 80 GFLOP/s and four copies of the signal against a convolution of 2.9 GFLOP at "
        "105. Tried: complex products, diagonals kept as real matrices, other chunks and blocks."
    ),
    "sequence: compact of full": LONG_AXIS,
    "cifar: compact of full": "What does not shrink, copies of the signal and the making of matrices, is a fifth.",
}


def measure(plan: Plan, sections: list[str]) -> Report:
    """The sections in the order of the page."""
    report = Report()
    if "training" in sections:
        training(report, plan, list(ROWS.values()))
    for section in (inference, memory, growth, causal):
        if section.__name__ in sections:
            section(report, plan)
    return report


def profile(name: str, layer: str) -> str:
    """The profiler's table of one training step of a row on one thread, by self time."""
    row = ROWS[name]
    with threads(1):
        step = training_step(LAYERS[layer](row), example(row))
        step()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            step()
    table: str = profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=30)
    return f"One training step of {name}, {row.shape}, {layer}, on one thread\n{table}"


def positive(kind: Callable[[str], T]) -> Callable[[str], T]:
    """An argument that is a finite number above zero."""

    def convert(text: str) -> T:
        value = kind(text)
        if not 0 < float(value) < math.inf:
            raise argparse.ArgumentTypeError(f"{text} must be above 0")
        return value

    return convert


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--repeats", type=positive(int), default=15, help="rounds of calls for each row, at most (default: 15)"
    )
    parser.add_argument(
        "--seconds", type=positive(float), default=6.0, help="for each row, after its third round (default: 6)"
    )
    parser.add_argument("--threads", type=positive(int), nargs="+", default=[1, 2], help="each in turn (default: 1 2)")
    parser.add_argument("--rows", nargs="+", choices=ROWS, help="only these, in the training section alone by default")
    parser.add_argument(
        "--layers",
        nargs="+",
        choices=LAYERS,
        default=list(LAYERS),
        help="beside the convolution; floor: the convolution by real FFTs, spectral: a Fourier layer (default: all)",
    )
    parser.add_argument("--sections", nargs="+", choices=SECTIONS)
    parser.add_argument("--profile", choices=ROWS, metavar="ROW", help="where the time of its step goes, and stop")
    parser.add_argument("--write", action="store_true", help=f"keep the page as {RESULTS}")
    return parser


def main() -> None:
    parser = arguments()
    options = parser.parse_args()
    if options.profile and options.write:
        parser.error("--profile measures nothing that --write could keep: leave one out")
    if options.profile:
        layer = "full" if options.layers == list(LAYERS) else options.layers[0]
        print(profile(options.profile, layer))
        return
    chosen = ("rows", "sections", "layers", "threads", "repeats", "seconds")
    changed = [f"--{name}" for name in chosen if getattr(options, name) != parser.get_default(name)]
    if options.write and changed:
        parser.error(f"--write keeps the whole page as it is defined: leave out {', '.join(changed)}")
    sections = options.sections or (["training"] if options.rows else list(SECTIONS))
    plan = Plan(options.repeats, options.seconds, options.threads, options.rows or list(ROWS), options.layers)
    start = time.perf_counter()
    report = measure(plan, sections)
    config = {"repeats": plan.repeats, "seconds": plan.seconds, "threads": plan.threads, "seed": 0}
    config["whole run, seconds"] = round(time.perf_counter() - start)
    if options.write:
        RESULTS.parent.mkdir(exist_ok=True)
        write_atomic(RESULTS, page(report, WHY, config))
    print("", *report.summary(WHY), *report.notes, sep="\n")


if __name__ == "__main__":
    main()
