"""Checkpoints of a training run: tensors and plain values only, written whole or not at all."""

import io
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import torch
from torch import Tensor, nn

FORMAT = 1


def to_bytes(state: Mapping[str, Any]) -> bytes:
    """What torch.save writes; in memory, since torch's own file writer turns a full disk into other errors."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getvalue()


def read_tensors(path: Path) -> dict[str, Any]:
    """A dictionary written by torch.save, loaded without unpickling code.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is truncated, or no dictionary of tensors and plain values.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint file {str(path)!r}")
    content = io.BytesIO(path.read_bytes())
    try:
        state = torch.load(content, map_location="cpu", weights_only=True)
    except (RuntimeError, ValueError, LookupError, EOFError, OSError, pickle.UnpicklingError, BadZipFile) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"checkpoint {str(path)!r} is truncated or no torch checkpoint: {reason}") from error
    if not isinstance(state, dict):
        raise ValueError(f"checkpoint {str(path)!r} holds a {type(state).__name__}, not a dictionary of tensors")
    return state


def read_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The weights in a checkpoint: a .safetensors file, a saved state_dict, or one under "model" or "state_dict".

    Raises:
        FileNotFoundError, ValueError: as `read_tensors`; also for entries that are not tensors.
    """
    path = Path(path)
    if path.suffix == ".safetensors" and path.is_file():
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except SafetensorError as error:
            raise ValueError(f"checkpoint {str(path)!r} is truncated or no safetensors file: {error}") from error
    state = read_tensors(path)
    for key in ("model", "state_dict"):
        if isinstance(state.get(key), dict):
            state = state[key]
    others = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if others or not state:
        raise ValueError(f"checkpoint {str(path)!r} is no state_dict; not tensors: {others[:5]}")
    return state


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Load weights that must fit the model exactly; checked first, so that a misfit changes nothing.

    Raises:
        ValueError: lists the missing and unexpected keys and the tensors of another shape.
    """
    own = model.state_dict()
    missing, unexpected = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    shapes = [
        f"{name} {tuple(weights[name].shape)} for {tuple(own[name].shape)}"
        for name in own.keys() & weights.keys()
        if weights[name].shape != own[name].shape
    ]
    if missing or unexpected or shapes:
        raise ValueError(
            f"{source} does not fit the model; missing: {_listed(missing)}; unexpected: {_listed(unexpected)}; "
            f"other shapes: {_listed(sorted(shapes))}"
        )
    model.load_state_dict(dict(weights))


def _listed(names: list[str]) -> str:
    more = f", and {len(names) - 8} more" if len(names) > 8 else ""
    return (", ".join(names[:8]) + more) if names else "none"
