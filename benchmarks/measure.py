"""Time and peak memory of a layer's step.

python benchmarks/measure.py ROW LAYER        # prints the bytes of a training step, in a process of its own
"""

import contextlib
import ctypes
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from layers import LAYERS, ROWS, example
from torch import Tensor, nn

Call = Callable[[], object]
SCRIPT = Path(__file__)
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Inside, torch computes on `count` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def training_step(layer: nn.Module, x: Tensor) -> Call:
    """Forward and backward in training mode; gradients of the input and of every parameter, made anew."""
    layer.train()
    cotangent = torch.randn_like(layer(x).detach())

    def step() -> None:
        layer.zero_grad()
        x.grad = None
        layer(x).backward(cotangent)

    return step


def inference_step(layer: nn.Module, x: Tensor) -> Call:
    """Forward in evaluation mode without gradients."""
    layer.eval()

    def step() -> None:
        with torch.no_grad():
            layer(x)

    return step


def interleaved(calls: Mapping[str, Call], repeats: int, seconds: float) -> dict[str, float]:
    """Median seconds of each call, the calls taking turns.

    The first round is a warm-up. Then up to `repeats` rounds, and after three of them no more than `seconds`. Where one
    round takes longer than that, one more follows and the first counts too.
    """
    rounds = [_round(calls)]
    if sum(rounds[0].values()) > seconds:
        if repeats > 1:
            rounds.append(_round(calls))
    else:
        end = time.perf_counter() + seconds
        rounds = []
        while len(rounds) < repeats and (len(rounds) < 3 or time.perf_counter() < end):
            rounds.append(_round(calls))
    return {name: statistics.median(times[name] for times in rounds) for name in calls}


def _round(calls: Mapping[str, Call]) -> dict[str, float]:
    times = {}
    for name, call in calls.items():
        start = time.perf_counter()
        call()
        times[name] = time.perf_counter() - start
    return times


def peak_memory(row: str, layer: str) -> int:
    """Bytes that a training step of a layer needs above its start, measured in a fresh process on one thread.

    Raises:
        OSError: the system keeps no peak that can be reset (it is not Linux).
        subprocess.CalledProcessError: the process failed; its own message is on stderr.
    """
    if not CLEAR.exists():
        raise OSError(f"peak memory is read from {STATUS} and reset by {CLEAR}, which this system lacks")
    # with a fixed threshold every large block goes back to the system when it is freed
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), row, layer]
    return int(subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout)


def growth_of_memory(call: Call) -> int:
    """Bytes by which the resident memory of this process rose above its start during the call, at the highest."""
    ctypes.CDLL(None).malloc_trim(0)
    CLEAR.write_text("5")
    before = _status("VmRSS")
    call()
    return _status("VmHWM") - before


def _status(key: str) -> int:
    match = re.search(rf"^{key}:\s+(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    if match is None:
        raise OSError(f"{STATUS} has no {key}")
    return int(match[1]) * 1024


def main() -> None:
    torch.set_num_threads(1)
    row = ROWS[sys.argv[1]]
    layer, x = LAYERS[sys.argv[2]](row), example(row)
    step = training_step(layer, x)
    # what libraries load and keep at first use is no part of a step
    step()
    layer.zero_grad()
    x.grad = None
    print(growth_of_memory(step))


if __name__ == "__main__":
    main()
