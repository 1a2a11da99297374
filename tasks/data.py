"""Where data come from: the user's folder, or a file that was generated before and kept under a content hash."""

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from xdnas.files import write_atomic


def data_folder(data: str | os.PathLike[str] | None, what: str, remedy: str) -> Path:
    """The folder with the user's data: the argument, or $XDNAS_DATA.

    Raises:
        FileNotFoundError: there is none; the message says what is missing and `remedy`.
    """
    given = data if data is not None else os.environ.get("XDNAS_DATA")
    if not given:
        raise FileNotFoundError(f"{what}: no data folder; give data= (--data) or set XDNAS_DATA. {remedy}")
    folder = Path(given)
    if not folder.exists():
        raise FileNotFoundError(f"{what}: {str(folder)!r} does not exist. {remedy}")
    return folder


def cache_folder() -> Path:
    """Where generated data are kept: $XDNAS_CACHE, or xdnas below the user's cache folder."""
    own = os.environ.get("XDNAS_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "xdnas"


def check_counts(what: str, counts: Mapping[str, Any]) -> None:
    """Refuse numbers of samples that are not whole or not above 0."""
    for name, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{what}: {name} {value!r} must be a whole number above 0")


def check_seed(what: str, seed: Any) -> None:
    """Refuse a seed that torch or numpy would not take."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise ValueError(f"{what}: seed {seed!r} must be a whole number from 0 to 2^63 - 1")


def cached(name: str, settings: Mapping[str, Any], make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors made once for these settings and read from the cache after that.

    The file name is a hash of the settings; a hash of the values stands inside. A damaged file is made again, with a
    warning.
    """
    key = json.dumps({"name": name, **settings}, sort_keys=True)
    path = cache_folder() / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.safetensors"
    if path.is_file():
        try:
            return _read(path, key)
        except (SafetensorError, ValueError) as error:
            warnings.warn(f"{path} is damaged ({error}); making it again", stacklevel=2)
    values = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, save(values, {"settings": key, "sha256": _hash(values)}))
    return values


def _read(path: Path, key: str) -> dict[str, Tensor]:
    with safe_open(path, "pt") as file:
        values = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata() or {}
    if metadata.get("settings") != key or metadata.get("sha256") != _hash(values):
        raise ValueError("its values do not have the hash that it names")
    return values


def _hash(values: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(values):
        digest.update(name.encode() + str(tuple(values[name].shape)).encode())
        digest.update(values[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


def progress(steps: int, what: str) -> Iterator[int]:
    """Count to `steps` under a progress bar; quiet when the output is no terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return iter(track(range(steps), what, console=console, disable=not console.is_terminal, transient=True))
