"""A finished run folder without a search."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

LAYERS = ("convs.0", "convs.1")
FINAL: dict[str, float | None] = {"backbone": 0.04, "frozen": 0.04, "xd": 0.02, "fno": 0.01}


def write_run(folder: Path, *, tests: dict[str, float | None] | None = None, trials: int = 2, epochs: int = 3) -> Path:
    """Write the files of a search over `tests` (test metric by method; None = all its trials diverged)."""
    tests = dict(FINAL) if tests is None else tests
    folder.mkdir(parents=True)
    config = {
        "verb": "search",
        "task": "burgers",
        "task_options": {"resolution": 32},
        "backbone": "pde",
        "trials": trials,
    }
    versions = {"python": "3.11", "torch": "2.13", "platform": "Linux <x86>"}
    _write(folder / "config.json", {**config, "epochs": epochs, "seed": 7, "versions": versions})
    for method, test in tests.items():
        for number in range(trials):
            write_trial(folder, method, number, epochs, math.nan if test is None else test)
    write_results(folder, tests, trials, epochs)
    write_predictions(folder, [method for method, test in tests.items() if test is not None])
    return folder


def write_results(folder: Path, tests: dict[str, float | None] = FINAL, trials: int = 2, epochs: int = 3) -> None:
    distance = {layer: {"K": 0.1, "L": 0.2, "M": 0.3} for layer in LAYERS}
    results = {"task": "burgers", "metric": "relative L2", "backbone": "pde", "seed": 7, "epochs": epochs}
    entries = [_entry(method, test, trials) for method, test in tests.items()]
    baselines = {"input": 0.7, "linear Fourier filter": 0.3}
    _write(
        folder / "results.json",
        {**results, "methods": entries, "baselines": baselines, "distance": distance, "search_seconds": 65.0},
    )


def write_trial(folder: Path, method: str, number: int, epochs: int, final: float) -> None:
    own = folder / "trials" / f"{method}-{number}"
    own.mkdir(parents=True)
    arch = {"arch_optimizer": "sgd", "arch_lr": 0.1, "arch_warmup": 1} if method == "xd" else {}
    _write(own / "config.json", {"method": method, "settings": {"lr": 0.001 * (number + 1), **arch}})
    rows = [] if math.isnan(final) else [_epoch(method, epoch, final * (1 + number), epochs) for epoch in range(epochs)]
    (own / "epochs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    status = "finished" if rows else "diverged"
    _write(own / "result.json", {"status": status, "valid": rows[-1]["valid"] if rows else None, "seconds": 1.0})


def write_predictions(folder: Path, methods: list[str]) -> None:
    place = np.linspace(0, 2 * np.pi, 32, endpoint=False, dtype=np.float32)
    truth = np.stack([np.sin(place), np.cos(place)])
    x = np.stack([np.stack([row * 1.2, place]) for row in truth])
    arrays: dict[str, Any] = {method: truth + 0.01 * (i + 1) for i, method in enumerate(methods)}
    np.savez(folder / "predictions.npz", x=x, truth=truth, **arrays)


def _epoch(method: str, epoch: int, final: float, epochs: int) -> dict[str, Any]:
    away = 0.1 * epoch if method == "xd" else 0.0
    distance = {layer: {"K": away, "L": 2 * away, "M": away} for layer in LAYERS}
    valid = final * 2.0 ** (epochs - 1 - epoch)
    distance = distance if method in ("xd", "frozen") else {}
    return {"epoch": epoch + 1, "train_loss": valid, "valid": valid, "seconds": 1.5, "distance": distance}


def _entry(method: str, test: float | None, trials: int) -> dict[str, Any]:
    return {
        "name": method,
        "test": test,
        "valid": test,
        "seconds": 9.0,
        "trials": trials,
        "settings": {"lr": 0.001},
        "parameters": 1234,
        "diverged": trials if test is None else 0,
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content))
