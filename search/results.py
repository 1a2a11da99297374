"""The outcome of a run: the best trial of every method, its test metric, and the files that hold them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from xdnas.files import write_atomic
from xdnas.search.runfolder import best_trial, read_json, read_trials, trial_folder, write_json
from xdnas.search.trial import Setup, make_model, trained_model
from xdnas.tasks.savepoint import read_tensors, to_bytes
from xdnas.tasks.task import Task
from xdnas.tasks.train import device_of, evaluate

_SAMPLES = 4


@dataclass(frozen=True)
class SearchResult:
    """What a search found; the same as its results.json.

    Attributes:
        folder: the run folder.
        task, metric: names; lower is better.
        methods: one dictionary per method: "name", "test" and "valid" (None if all its trials diverged), "seconds" (of
            its own trials; those of "xd" take the step size that the backbone's chose), "trials", "settings" (of the
            best one), "parameters", "diverged" (how many did).
        baselines: test metric of trivial predictors.
        distance: {layer: {"K": ..., "L": ..., "M": ...}} of the best supernet from its start.
        seconds: wall time of the whole search, all trials of all methods.
    """

    folder: Path
    task: str
    metric: str
    methods: list[dict[str, Any]]
    baselines: Mapping[str, float]
    distance: Mapping[str, Mapping[str, float]]
    seconds: float
    setup: Setup = field(repr=False)

    def method(self, name: str) -> dict[str, Any]:
        """The entry of one method.

        Raises:
            ValueError: there is no such method.
        """
        for entry in self.methods:
            if entry["name"] == name:
                return entry
        known = ", ".join(entry["name"] for entry in self.methods)
        raise ValueError(f"no method {name!r} in this search; its methods: {known}")

    def load_best(self, method: str = "xd") -> nn.Module:
        """The network of a method with the weights of its best trial, in evaluation mode.

        Raises:
            ValueError: there is no such method, or all its trials diverged.
        """
        path = self.folder / "best" / f"{method}.pt"
        if self.method(method)["test"] is None:
            raise ValueError(f"all trials of {method!r} diverged; there is no best one")
        return trained_model(self.setup, self.setup.load_task(), method, path).eval()


def finish(setup: Setup, task: Task, methods: Sequence[str], seconds: float) -> SearchResult:
    """Evaluate the best trial of every method once on the test set, and write results.json, best/ and predictions.npz.

    predictions.npz (of a task whose targets are fields): x (samples, channels, *size), truth (samples, ...), and one
    array like truth for every method.
    """
    folder = setup.folder
    (folder / "best").mkdir(exist_ok=True)
    x, y = (tensor[:_SAMPLES] for tensor in task.test.tensors)
    predictions = {"x": x, "truth": y}
    entries = []
    for method in methods:
        entry, model = _evaluated(setup, task, method)
        entries.append(entry)
        if model is not None and y.is_floating_point():
            with torch.no_grad():
                predictions[method] = model(x.to(device_of(model))).cpu()
    if y.is_floating_point():
        _write_arrays(folder / "predictions.npz", {name: tensor.numpy() for name, tensor in predictions.items()})
    supernet = best_trial(folder, "xd")
    write_json(
        folder / "results.json",
        {
            "task": task.name,
            "metric": task.metric.name,
            "backbone": setup.backbone_name,
            "seed": setup.seed,
            "epochs": setup.epochs,
            "methods": entries,
            "baselines": dict(task.baselines),
            "distance": supernet.epochs[-1]["distance"] if supernet else {},
            "search_seconds": seconds,
        },
    )
    return read_result(setup)


def read_result(setup: Setup) -> SearchResult:
    """The result of a run that is complete."""
    row = read_json(setup.folder / "results.json")
    return SearchResult(
        setup.folder,
        row["task"],
        row["metric"],
        row["methods"],
        row["baselines"],
        row["distance"],
        row["search_seconds"],
        setup,
    )


def _evaluated(setup: Setup, task: Task, method: str) -> tuple[dict[str, Any], nn.Module | None]:
    trials = read_trials(setup.folder, method)
    best = best_trial(setup.folder, method)
    model, test = None, math.nan
    if best is not None:
        weights = setup.folder / "best" / f"{method}.pt"
        checkpoint = read_tensors(trial_folder(setup.folder, best.name) / "checkpoint.pt")
        write_atomic(weights, to_bytes(checkpoint["model"]))
        model = trained_model(setup, task, method, weights).eval()
        test = evaluate(model, task.test, task.metric, setup.recipe(task, method).batch_size)
    counted = model if model is not None else make_model(setup, task, method)
    entry = {
        "name": method,
        "test": test if math.isfinite(test) else None,
        "valid": best.valid if best else None,
        "seconds": sum(trial.seconds for trial in trials),
        "trials": len(trials),
        "settings": best.settings if best else {},
        "parameters": sum(parameter.numel() for parameter in counted.parameters()),
        "diverged": sum(trial.status == "diverged" for trial in trials),
    }
    return entry, model


def _write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    import io

    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_atomic(path, buffer.getvalue())
