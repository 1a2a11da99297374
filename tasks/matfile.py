"""Arrays of MATLAB files: version 5 read here, version 7.3 by h5py (an extra).

scipy.io.loadmat takes a cut last variable for the end of the file, and crashes the interpreter on some damaged headers.
"""

import math
import struct
import zlib
from pathlib import Path

import numpy as np

MATRIX, COMPRESSED = 14, 15
TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
NUMERIC_CLASSES, COMPLEX = range(6, 16), 0x0800


def read_mat(path: Path, fields: tuple[str, ...], remedy: str) -> dict[str, np.ndarray]:
    """Arrays of real numbers by name, in MATLAB's order of axes.

    Raises:
        FileNotFoundError, ValueError: the file is missing, damaged, or without these fields; the message has `remedy`.
        ModuleNotFoundError: a 7.3 file and no h5py.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist. {remedy}")
    with path.open("rb") as file:
        new = b"MATLAB 7.3" in file.read(128)
    try:
        values = _read_73(path, fields) if new else _read_5(path, fields)
    except (ValueError, OSError, struct.error, zlib.error) as error:
        raise ValueError(f"{path} is truncated or no MATLAB file: {error}. {remedy}") from error
    missing = [name for name in fields if name not in values]
    if missing:
        raise ValueError(f"{path} has no field {', '.join(missing)}; expected {', '.join(fields)}. {remedy}")
    for name, value in values.items():
        if value.dtype.kind not in "fiu":
            raise ValueError(f"{path}: field {name} holds {value.dtype}, expected real numbers. {remedy}")
    return values


def _read_73(path: Path, fields: tuple[str, ...]) -> dict[str, np.ndarray]:
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{path} is a MATLAB 7.3 file; pip install 'xdnas[hdf5]' to read it") from error
    try:
        with h5py.File(path, "r") as file:
            return {name: np.asarray(file[name]).T for name in fields if isinstance(file.get(name), h5py.Dataset)}
    except (RuntimeError, KeyError) as error:
        raise ValueError(str(error)) from error


def _read_5(path: Path, fields: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Walk through the variables (a tag of two numbers, type and length, before each) and read those of these names."""
    values: dict[str, np.ndarray] = {}
    size = path.stat().st_size
    with path.open("rb") as file:
        order = {b"IM": "<", b"MI": ">"}.get(file.read(128)[126:], "")
        if not order:
            raise ValueError("the header of version 5 is missing")
        at = 128
        while at < size:
            file.seek(at)
            kind, length = struct.unpack(f"{order}II", file.read(8))
            if kind not in (MATRIX, COMPRESSED) or at + 8 + length > size:
                raise ValueError(f"no whole variable at byte {at} of {size}")
            start = file.read(min(length, 1024))
            head = zlib.decompressobj().decompress(start, 1024)[8:] if kind == COMPRESSED else start
            name = _name(head, order)
            if name in fields:
                content = start + file.read(length - len(start))
                content = zlib.decompress(content)[8:] if kind == COMPRESSED else content
                values[name] = _array(name, content, order)
            at += 8 + length
    return values


def _parts(content: bytes, order: str) -> list[tuple[int, bytes]]:
    """(type, content) of the first elements of a variable: flags, sizes, name, values."""
    parts: list[tuple[int, bytes]] = []
    at = 0
    while at + 8 <= len(content) and len(parts) < 4:
        kind, length = struct.unpack_from(f"{order}II", content, at)
        small = kind >> 16
        if small:
            parts.append((kind & 0xFFFF, content[at + 4 : at + 4 + min(small, 4)]))
        else:
            parts.append((kind, content[at + 8 : at + 8 + length]))
        at += 8 if small else 8 + (length + 7) // 8 * 8
    return parts


def _name(content: bytes, order: str) -> str:
    parts = _parts(content, order)
    return parts[2][1].decode("latin1") if len(parts) > 2 else ""


def _array(name: str, content: bytes, order: str) -> np.ndarray:
    parts = _parts(content, order)
    flags = struct.unpack_from(f"{order}I", parts[0][1])[0]
    kind, raw = parts[3] if len(parts) > 3 else (0, b"")
    if flags & 0xFF not in NUMERIC_CLASSES or flags & COMPLEX or kind not in TYPES:
        raise ValueError(f"field {name} is no array of real numbers")
    shape = [int(n) for n in np.frombuffer(parts[1][1], f"{order}i4")]
    values = np.frombuffer(raw, order + TYPES[kind])
    if len(values) != math.prod(shape):
        raise ValueError(f"field {name} has {len(values)} values, not {shape}")
    return values.reshape(shape, order="F")
