"""The folder of a run: what stands where, and how it is written and read.

It is the only memory of a search. Every file is replaced as a whole, so that a kill at any moment loses at most the
epoch that was running.
"""

import itertools
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from xdnas.files import write_atomic
from xdnas.tasks.train import Epoch

# the last file that a run writes
REPORT = "report.html"


@dataclass(frozen=True)
class Trial:
    """One trial as its folder tells it.

    Attributes:
        name: `<method>-<number>`.
        method: "backbone", "frozen", "xd" or the name of a rival.
        settings: what it was trained with.
        status: "finished", "stopped" (early), "diverged", or "" while it has not ended.
        epochs: one dictionary per finished epoch.
    """

    name: str
    method: str
    settings: dict[str, Any]
    status: str
    epochs: list[dict[str, Any]]

    @property
    def valid(self) -> float:
        """The last validation metric; inf before the first epoch."""
        return float(self.epochs[-1]["valid"]) if self.epochs else float("inf")

    @property
    def seconds(self) -> float:
        """Wall time of all its epochs."""
        return float(sum(epoch["seconds"] for epoch in self.epochs))


def new_folder(out: str | os.PathLike[str] | None, task: str) -> Path:
    """Where a new run goes: `out`, or `runs/<task>-<date>-<time>`; not made yet.

    Raises:
        FileExistsError: `out` is there already.
    """
    if out is None:
        first = Path("runs", f"{task}-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
        names = (first if i == 1 else first.with_name(f"{first.name}-{i}") for i in itertools.count(1))
        return next(name for name in names if not name.exists())
    folder = Path(out).absolute()
    if folder.exists():
        raise FileExistsError(
            f"run folder {str(folder)!r} exists already; choose another out, or continue the run in it with resume=True"
        )
    return folder


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Keep a second process out of a run folder while this one works in it.

    Raises:
        BlockingIOError: another process does.
    """
    import fcntl

    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(f"run folder {str(folder)!r} is in use by another process") from error
        yield


@contextmanager
def resumable(what: str, folder: Path) -> Iterator[None]:
    """Let a KeyboardInterrupt tell that the run has a folder, and how to go on in it."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(
            f"{what} stopped; it continues with the same arguments, resume=True and out={str(folder)!r}"
        ) from error


@contextmanager
def stopwatch(folder: Path) -> Iterator[Callable[[], float]]:
    """Wall seconds spent on a run, those before it was resumed among them unless it was killed; kept in clock.json."""
    clock = folder / "clock.json"
    before = float(read_json(clock)["seconds"]) if clock.is_file() else 0.0
    began = time.monotonic()

    def elapsed() -> float:
        return before + time.monotonic() - began

    try:
        yield elapsed
    finally:
        write_json(clock, {"seconds": elapsed()})


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file as a whole; numbers that are not finite are refused."""
    write_atomic(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file.

    Raises:
        ValueError: it is no JSON object.
    """
    try:
        content = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{str(path)!r} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{str(path)!r} holds a {type(content).__name__}, not an object")
    return content


def trial_folder(folder: Path, name: str) -> Path:
    """The folder of one trial."""
    return folder / "trials" / name


def add_trials(folder: Path, method: str, settings: Iterable[Mapping[str, Any]]) -> list[str]:
    """Make the folders of a method's trials and give their names; folders that are there stay as they are."""
    names = []
    for number, values in enumerate(settings):
        names.append(f"{method}-{number}")
        own = trial_folder(folder, names[-1])
        own.mkdir(parents=True, exist_ok=True)
        if not (own / "config.json").is_file():
            write_json(own / "config.json", {"method": method, "settings": dict(values)})
    return names


def pending(folder: Path, names: Iterable[str]) -> list[str]:
    """Those trials that have not ended."""
    return [name for name in names if not (trial_folder(folder, name) / "result.json").is_file()]


def write_epochs(own: Path, epochs: Iterable[Epoch]) -> None:
    """Write epochs.jsonl of a trial: one JSON object a line, "epoch" being the number."""
    rows = [{"epoch": row.pop("number"), **row} for row in map(asdict, epochs)]
    write_atomic(own / "epochs.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def write_status(own: Path, status: str) -> None:
    """Write result.json, which says that a trial has ended and how."""
    trial = read_trial(own)
    finite = status != "diverged" and bool(trial.epochs)
    write_json(
        own / "result.json",
        {"status": status, "valid": trial.valid if finite else None, "seconds": trial.seconds},
    )


def read_trial(own: Path) -> Trial:
    """What the folder of a trial tells.

    Raises:
        ValueError: a file of it is broken.
    """
    config = read_json(own / "config.json")
    rows = own / "epochs.jsonl"
    epochs = [json.loads(line) for line in rows.read_text().splitlines()] if rows.is_file() else []
    ended = read_json(own / "result.json") if (own / "result.json").is_file() else {"status": ""}
    try:
        return Trial(own.name, config["method"], config["settings"], str(ended["status"]), epochs)
    except KeyError as error:
        raise ValueError(f"{str(own)!r}: its config.json or result.json lacks {error}") from error


def read_trials(folder: Path, method: str | None = None) -> list[Trial]:
    """The trials of one method or of all, by method and number."""
    found = [read_trial(config.parent) for config in (folder / "trials").glob("*/config.json")]
    chosen = [trial for trial in found if method is None or trial.method == method]
    return sorted(chosen, key=lambda trial: (trial.method, int(trial.name.rsplit("-", 1)[1])))


def best_trial(folder: Path, method: str) -> Trial | None:
    """The trial with the lowest last validation metric.

    A trial that ran all its epochs comes before any that was stopped early, and one that diverged is never chosen.
    """
    ended = [trial for trial in read_trials(folder, method) if trial.status in ("finished", "stopped")]
    return min(ended, key=lambda trial: (trial.status != "finished", trial.valid), default=None)


def versions() -> dict[str, Any]:
    """What a run was made with."""
    packages = {name: version(name) for name in ("torch", "numpy", "ray", "xdnas")}
    machine = {"platform": platform.platform(), "cpus": os.cpu_count(), "threads": torch.get_num_threads()}
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return {"python": platform.python_version(), **packages, **machine, **gpu}
