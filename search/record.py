"""A run folder as its report reads it: files checked, and every fault named by its file and what to do about it."""

import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xdnas.search.runfolder import Trial, best_trial, read_json, read_trials

# what the report takes from every file
_RESULTS = {"task": str, "metric": str, "backbone": str, "methods": list, "baselines": dict, "search_seconds": float}
_METHOD = {"name": str, "test": float, "valid": float, "seconds": float, "trials": int, "settings": dict}
_EPOCH = {"epoch": int, "valid": float, "seconds": float, "distance": dict}
_MAY_BE_NONE = ("test", "valid")
# what numpy raises for a torn file
_TORN = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Record:
    """Everything that a report tells.

    Attributes:
        folder: the run folder.
        config: config.json.
        results: results.json.
        trials: of all methods, in the order of the methods in results.json.
        predictions: arrays of predictions.npz; empty when there is none.
    """

    folder: Path
    config: Mapping[str, Any]
    results: Mapping[str, Any]
    trials: list[Trial]
    predictions: Mapping[str, Array]

    @property
    def methods(self) -> list[dict[str, Any]]:
        """The entries of results.json."""
        return list(self.results["methods"])

    def method(self, name: str) -> dict[str, Any] | None:
        """The entry of one method, if the run has it."""
        return next((entry for entry in self.methods if entry["name"] == name), None)

    def best(self, method: str) -> Trial | None:
        """The best trial of a method; None when all of them diverged."""
        return best_trial(self.folder, method)


def read_record(folder: Path) -> Record:
    """Read and check the folder of a run that is finished.

    Raises:
        FileNotFoundError: there is no such folder, or a file is missing.
        ValueError: a file is broken.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"no run folder {str(folder)!r}; the folder of a run is made by xdnas search")
    config = _object(folder / "config.json", "it is no run folder; give the one that xdnas search printed last")
    results = _object(folder / "results.json", "the run is not finished; continue it with --resume")
    _check(folder / "results.json", results, _RESULTS)
    for entry in results["methods"]:
        _check(folder / "results.json", entry, _METHOD)
    for rows in sorted((folder / "trials").glob("*/epochs.jsonl")):
        _check_epochs(rows)
    order = [entry["name"] for entry in results["methods"]]
    trials = [trial for method in order for trial in read_trials(folder, method)]
    return Record(folder, config, results, trials, _arrays(folder / "predictions.npz"))


def _object(path: Path, missing: str) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"no file {str(path)!r}: {missing}")
    return read_json(path)


def _check_epochs(path: Path) -> None:
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{str(path)!r}, line {number}, is no JSON; remove the line") from error
        _check(path, row, _EPOCH)


def _check(path: Path, row: Any, wanted: Mapping[str, type]) -> None:
    if not isinstance(row, dict):
        raise ValueError(f"{str(path)!r} holds {str(row)[:40]!r} where an object is wanted")
    for name, kind in wanted.items():
        if name not in row:
            raise ValueError(f"{str(path)!r} lacks {name!r}; it has {', '.join(map(repr, row)) or 'nothing'}")
        value = row[name]
        right = isinstance(value, (int, float) if kind is float else kind) or (value is None and name in _MAY_BE_NONE)
        if not right:
            raise ValueError(f"{str(path)!r}: {name!r} is {str(value)[:40]!r}, not of type {kind.__name__}")


def _arrays(path: Path) -> dict[str, Array]:
    if not path.is_file():
        return {}
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: np.asarray(file[name]) for name in file.files}
    except _TORN as error:
        raise ValueError(
            f"{str(path)!r} is broken ({error}); remove it to have a report without predictions"
        ) from error
    missing = {"x", "truth"} - arrays.keys()
    if missing:
        raise ValueError(f"{str(path)!r} lacks {', '.join(sorted(missing))}; remove it to have a report without them")
    return arrays
