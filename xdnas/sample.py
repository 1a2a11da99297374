"""Running a user's model on a sample without leaving a trace, and comparing outputs."""

import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from xdnas.report import SwapError

_REGISTRIES = ("_parameters", "_buffers", "_modules")


def run(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    """The model's output on copies of the inputs, without gradients."""
    return model(*tree_map_only(Tensor, lambda x: x.detach().clone(), inputs))


@contextmanager
def untouched(model: nn.Module, inputs: object = ()) -> Iterator[None]:
    """Evaluation mode in full float32 precision, without autocast; afterwards everything is as before.

    Put back are the training flag and the attributes of every module (as they were bound), the values of all buffers,
    and the random states of Python, NumPy, the CPU and the CUDA devices of model and inputs.
    """
    modules = list(model.modules())
    attributes = [(vars(m), dict(vars(m)), [dict(vars(m)[r]) for r in _REGISTRIES]) for m in modules]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    with ExitStack() as stack:
        stack.callback(_rebind, attributes)
        stack.callback(_refill, buffers)
        stack.enter_context(same_random_state(model, inputs))
        stack.enter_context(_full_precision())
        stack.enter_context(torch.no_grad())
        for kind in {tensor.device.type for tensor in model.parameters()}:
            if torch.amp.is_autocast_available(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        for module in modules:
            module.training = False
        yield


def _rebind(attributes: list[tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]]) -> None:
    for live, before, registries in attributes:
        for name, values in zip(_REGISTRIES, registries, strict=True):
            before[name].clear()
            before[name].update(values)
        live.clear()
        live.update(before)


@torch.no_grad()
def _refill(buffers: list[tuple[Tensor, Tensor]]) -> None:
    for buffer, before in buffers:
        if not buffer.is_meta and not torch.equal(buffer, before):
            buffer.copy_(before)


@contextmanager
def same_random_state(model: nn.Module, inputs: object = ()) -> Iterator[None]:
    """Put the random states back at the end: Python, NumPy, CPU and the CUDA devices of model and inputs."""
    tensors = [*model.parameters(), *model.buffers(), *tensors_of(inputs)]
    devices = sorted({t.device.index for t in tensors if t.device.type == "cuda"})
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@contextmanager
def _full_precision() -> Iterator[None]:
    """No TF32: on GPUs cuDNN's default would compare a rounded convolution with an exact XD layer."""
    if not torch.cuda.is_available():
        yield
        return
    cudnn, precision = torch.backends.cudnn, torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    settings = {"benchmark": cudnn.benchmark, "deterministic": cudnn.deterministic, "enabled": cudnn.enabled}
    try:
        with cudnn.flags(**settings, allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)


def tensors_of(output: object) -> list[Tensor]:
    """All tensors in nested tuples, lists, mappings and dataclasses, in order."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        parts = list(output.values())
    elif isinstance(output, (tuple, list)):
        parts = list(output)
    elif is_dataclass(output):
        parts = [getattr(output, field.name) for field in fields(output)]
    else:
        return []
    return [tensor for part in parts for tensor in tensors_of(part)]


def output_error(now: object, before: object) -> float | None:
    """The worst relative error of all floating-point tensors in two outputs; None when there are none to compare.

    Raises:
        SwapError: when the outputs differ in number or shapes of tensors.
    """
    pairs = list(zip(tensors_of(now), tensors_of(before), strict=False))
    shapes = [[tuple(t.shape) for t in tensors_of(output)] for output in (now, before)]
    if shapes[0] != shapes[1]:
        raise SwapError(f"the model's output has tensors of shapes {shapes[0]} after the swap and {shapes[1]} before")
    errors = [relative_error(a, b) for a, b in pairs if b.is_floating_point() or b.is_complex()]
    return max((e for e in errors if e is not None), default=None)


def relative_error(now: Tensor, before: Tensor, scale: float = 0.0) -> float | None:
    """Largest difference over the whole tensor, relative to the largest of `before` and to `scale`.

    Entries that are not finite must be the same in both (else the error is infinite) and do not count otherwise. None
    on the meta device and for empty tensors.
    """
    if before.is_meta or before.numel() == 0:
        return None
    now, before = (t.to(torch.complex128 if t.is_complex() else torch.float64) for t in (now, before))
    finite = before.isfinite()
    same = now.isfinite() == finite
    if not bool(same.all()):
        return float("inf")
    difference = float((now - before)[finite].abs().max()) if bool(finite.any()) else 0.0
    largest = max(float(before[finite].abs().max()) if bool(finite.any()) else 0.0, scale)
    return difference / largest if largest > 0 else (0.0 if difference == 0 else float("inf"))


def allowance(tolerance: float, dtype: torch.dtype, layers: int = 1) -> float:
    """The tolerance for `layers` layers of a dtype.

    In float16 and bfloat16 K, L and M are rounded themselves: at least eight units of rounding per layer (0.008, 0.06).
    """
    if dtype in (torch.float16, torch.bfloat16):
        return max(tolerance, 8 * layers * torch.finfo(dtype).eps)
    return tolerance
