"""Saving and loading only what a swap added to a model: K, L, M, b and C.

One safetensors file; its header carries, as JSON, the format number, the xdnas version, the geometry of every XD layer,
and the names and shapes of the rest of the network (the base), so that a file meant for another network is refused
before anything changes. Nothing is ever unpickled.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from xdnas.files import write_atomic
from xdnas.params import named_architecture_parameters, xd_layers
from xdnas.report import quoted
from xdnas.xd import XD

FORMAT = 1
_KEY = "xdnas"
# left out of a layer's geometry where they are off, so that files of versions without them still fit
_FORMS = {"compact": False, "causal": False}


class CheckpointError(ValueError):
    """An architecture file that cannot be saved or loaded. Model and file are as before the call."""


def save_architecture(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write the architecture parameters of `model` to a safetensors file, replacing it only when all is written.

    Raises:
        CheckpointError: when the model has no XD layer, or its values are on the meta device.
        OSError: when the file cannot be written; an earlier one is still there then.
    """
    tensors = {name: _plain(parameter) for name, parameter in _architecture(model).items()}
    meta = [name for name, tensor in tensors.items() if tensor.is_meta]
    if meta:
        raise CheckpointError(f"{quoted(meta)} are on the meta device and have no values to save")
    header = {"format": FORMAT, "version": version("xdnas"), "digest": _digest(tensors), **_description(model)}
    write_atomic(path, save(tensors, {_KEY: json.dumps(header)}))


@torch.no_grad()
def load_architecture(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Fill the architecture parameters of a swapped model from a file of `save_architecture`, in place.

    The model must have the same XD layers (swap it with the same choice and options first) on the same base. Shared
    layers stay shared; values keep their bits, and a file of lower precision is widened.

    Raises:
        FileNotFoundError: when there is no such file.
        CheckpointError: for a truncated, changed or foreign file, a newer format, another base, other layers, other
            shapes or a higher precision than the model's; nothing has changed then.
    """
    header, tensors = _read(Path(path))
    parameters = _architecture(model)
    _check_same(header, _description(model), path)
    _check_tensors(parameters, tensors, path)
    for name, parameter in parameters.items():
        parameter.copy_(tensors[name])


def _architecture(model: nn.Module) -> dict[str, nn.Parameter]:
    parameters = dict(named_architecture_parameters(model))
    if not parameters:
        raise CheckpointError(
            "the model has no XD layer; call xdnas.swap on it first, with the choice and options of the file"
        )
    return parameters


def _plain(parameter: Tensor) -> Tensor:
    # safetensors writes lazily conjugated or negated tensors as they lie in memory
    tensor = parameter.detach().resolve_conj().resolve_neg()
    return tensor.cpu().clone(memory_format=torch.contiguous_format) if not tensor.is_meta else tensor


def _description(model: nn.Module) -> dict[str, Any]:
    """Geometry of every XD layer and names and shapes of the base, as JSON gives them back."""
    base = _base(model)
    fingerprint = hashlib.sha256(json.dumps(sorted(base.items())).encode()).hexdigest()
    layers = {name: _geometry(xd) for name, xd in xd_layers(model).items()}
    description: dict[str, Any] = json.loads(json.dumps({"fingerprint": fingerprint, "base": base, "layers": layers}))
    return description


def _base(model: nn.Module) -> dict[str, list[int]]:
    architecture = {id(parameter) for _, parameter in named_architecture_parameters(model)}
    state = model.state_dict(keep_vars=True)
    return {name: list(t.shape) for name, t in state.items() if isinstance(t, Tensor) and id(t) not in architecture}


def _geometry(xd: XD) -> dict[str, Any]:
    names = ("in_channels", "out_channels", "kernel_size", "input_size", "output_size", "n", "depth")
    more = ("stride", "padding", "dilation", "groups", "padding_mode")
    shapes = {"b": xd.b is not None, "C": xd.C is not None}
    forms = {name: getattr(xd, name) for name in _FORMS if getattr(xd, name)}
    return {name: getattr(xd, name) for name in (*names, *more)} | shapes | forms


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not path.is_file():
        raise FileNotFoundError(f"no architecture file at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is not a safetensors file or is damaged: {error}") from error
    header = _header(metadata, path)
    if header["digest"] != _digest(tensors):
        raise CheckpointError(f"{path} is damaged: its values are not the ones that were saved")
    return header, tensors


def _header(metadata: Mapping[str, str], path: Path) -> dict[str, Any]:
    if _KEY not in metadata:
        raise CheckpointError(f"{path} is a safetensors file but not one of xdnas.save_architecture")
    try:
        header = json.loads(metadata[_KEY])
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{path} is damaged: its header is no JSON: {error}") from error
    number = header.get("format") if isinstance(header, dict) else None
    if not isinstance(number, int) or number < 1:
        raise CheckpointError(f"{path} is damaged: its header names no format number")
    if number > FORMAT:
        raise CheckpointError(f"{path} has format {number}; this xdnas reads up to {FORMAT}: update xdnas")
    for name, kind in {"digest": str, "fingerprint": str, "base": dict, "layers": dict}.items():
        if not isinstance(header.get(name), kind):
            raise CheckpointError(f"{path} is damaged: its header has no {name!r}")
    return dict(header)


def _check_same(header: Mapping[str, Any], here: Mapping[str, Any], path: object) -> None:
    """Same layers with the same geometry on the same base, or an error that lists both sides."""
    for what, key in (("XD layers", "layers"), ("the base network", "base")):
        saved, own = header[key], here[key]
        missing, unexpected = [n for n in own if n not in saved], [n for n in saved if n not in own]
        if missing or unexpected:
            raise CheckpointError(
                f"{path} was saved from another network; {what} differ. "
                f"Missing in the file: {quoted(missing)}. Unexpected in the file: {quoted(unexpected)}"
            )
        changed = [f"{name!r}: {_difference(saved[name], own[name])}" for name in own if saved[name] != own[name]]
        if changed:
            raise CheckpointError(f"{path} does not fit, {what} differ: {'; '.join(changed[:12])}")
    if header["fingerprint"] != here["fingerprint"]:
        raise CheckpointError(f"{path} is damaged: its fingerprint is not the one of the base that it lists")


def _difference(saved: Any, own: Any) -> str:
    if isinstance(saved, dict) and isinstance(own, dict):
        saved, own = {**_FORMS, **saved}, {**_FORMS, **own}
        names = [name for name in {**own, **saved} if saved.get(name) != own.get(name)]
        return ", ".join(f"{name} {saved.get(name)} in the file, {own.get(name)} in the model" for name in names)
    return f"shape {saved} in the file, {own} in the model"


def _check_tensors(parameters: Mapping[str, Tensor], tensors: Mapping[str, Tensor], path: object) -> None:
    missing, unexpected = sorted(parameters.keys() - tensors), sorted(tensors.keys() - parameters)
    if missing or unexpected:
        raise CheckpointError(
            f"{path} does not fit. Missing in the file: {quoted(missing)}. Unexpected in the file: {quoted(unexpected)}"
        )
    for name, parameter in parameters.items():
        tensor = tensors[name]
        if tensor.shape != parameter.shape:
            shapes = f"{tuple(tensor.shape)} in the file, {tuple(parameter.shape)} in the model"
            raise CheckpointError(f"{path} does not fit: {name!r} is {shapes}")
        if torch.promote_types(tensor.dtype, parameter.dtype) != parameter.dtype:
            raise CheckpointError(
                f"{path}: {name!r} is {tensor.dtype} in the file and {parameter.dtype} in the model, which would lose "
                "digits; convert the model first"
            )
        if parameter.is_meta:
            raise CheckpointError(f"{name!r} is on the meta device; give the model memory first (to_empty)")
