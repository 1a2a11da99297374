"""Architecture search: trials of a backbone, of its supernet and of rivals, with the same budget, in one run folder."""

if __name__ != "xdnas.search":
    raise ImportError("import xdnas.search, not search")

import functools
import math
import os
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict
from typing import Any

from torch import nn

from xdnas.search.prepare import Given, prepare
from xdnas.search.progress import watching
from xdnas.search.results import SearchResult as SearchResult
from xdnas.search.results import finish, read_result
from xdnas.search.runfolder import (
    REPORT,
    add_trials,
    best_trial,
    claimed,
    pending,
    read_trial,
    resumable,
    stopwatch,
    trial_folder,
)
from xdnas.search.space import architecture_settings, weight_settings
from xdnas.search.trial import Setup, run_trial
from xdnas.search.tune import WORKER_THREADS, check_address, payload, ray_running, run_trials
from xdnas.tasks.task import Task
from xdnas.tasks.train import ArchSettings as ArchSettings
from xdnas.tasks.train import Diverged
from xdnas.tasks.train import TrainResult as TrainResult


def search(
    task: str | Task,
    backbone: str | nn.Module | None = None,
    *,
    trials: int,
    epochs: int,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    start: str | os.PathLike[str] | None = None,
    data: str | os.PathLike[str] | None = None,
    task_options: Mapping[str, Any] | None = None,
    progress: bool = True,
    device: str | None = None,
    address: str | None = None,
    concurrent: int = 2,
    early_stopping: bool = True,
) -> SearchResult:
    """Search with the XD-operations that start as the convolutions of a backbone, and train its rivals as fairly.

    What is tuned for whom, with the same number of trials, epochs, seed and early stopping:

    - `backbone` and every rival of the task (e.g. the Fourier neural operator): the step size of their weights, around
      the recipe's. The first trial is the recipe's own.
    - `frozen`, the supernet that may not leave its start: one trial at the backbone's best step size. It does what the
      backbone does.
    - `xd`, the searched supernet: optimizer, step size, momentum and warm-up of the architecture parameters, around the
      recipe's; the first trial is the recipe's own. Its weights take the step size that the backbone's trials chose, so
      these are a part of its price: SearchResult.seconds counts all trials, the "seconds" of a method only its own.

    All start from the same weights and see the samples in the same order. The trial with the lowest validation metric
    after its last epoch is the best of a method; the test set is looked at once for each of these. Settings are drawn
    from the seed; which trials are stopped early also depends on timing.

    Args:
        task: name for `xdnas.tasks.load`, or a Task.
        backbone: name for `xdnas.backbones.build`, or a network (it is copied); None = the task's own.
        trials: of each method.
        epochs: of each trial.
        seed: of settings, weights, shuffling.
        out: run folder, must be new; None = `runs/<task>-<date>-<time>`.
        resume: continue the search in `out`, which must have been started with the same arguments; the device may be
            another. A network of your own must have the same weights again, a task of your own the same data, recipes,
            and names of loss and metric. Trials that have ended count for early stopping as before.
        start: checkpoint (.pt with a state_dict, or .safetensors) with trained weights of the backbone.
        data: file or folder of a named task's data.
        task_options: of `xdnas.tasks.load` for a named task, e.g. {"resolution": 1024}.
        progress: a live table on a terminal, else a line for each trial that ends.
        device: "cpu" or "cuda"; None = CUDA if there is one.
        address: host:port of a Ray cluster; its nodes need xdnas and the run folder, at the same path. None = here.
        concurrent: trials at once, each on one CPU.
        early_stopping: stop the worse half of the trials on the way (ASHA).

    Raises:
        FileExistsError, FileNotFoundError, ValueError: wrong arguments; nothing has been started or written then.
        RuntimeError: a trial failed (not: diverged); the others are kept.
        KeyboardInterrupt: stopped by the user; resume=True continues.
    """
    for name, value in (("trials", trials), ("concurrent", concurrent)):
        if value < 1:
            raise ValueError(f"search: {name} {value} must be at least 1")
    check_address(address)
    given = Given(task, backbone, epochs, seed, out, resume, start, data, task_options, device)
    record = {"verb": "search", "trials": trials, "early_stopping": early_stopping, "worker_threads": WORKER_THREADS}
    setup, loaded = prepare(given, ("xd",), record)
    with claimed(setup.folder), resumable("search", setup.folder):
        if (setup.folder / "results.json").is_file():
            return _reported(read_result(setup))
        with stopwatch(setup.folder) as elapsed, watching(setup.folder, epochs, progress):
            _run_stages(setup, loaded, trials, address, concurrent, early_stopping, progress)
            return _reported(finish(setup, loaded, ("backbone", "frozen", "xd", *loaded.rivals), elapsed()))


def _reported(result: SearchResult) -> SearchResult:
    """The result, once its report stands in the run folder."""
    from xdnas.search.report import write_report

    if not (result.folder / REPORT).is_file():
        write_report(result.folder)
    return result


def _run_stages(
    setup: Setup, task: Task, trials: int, address: str | None, concurrent: int, early_stopping: bool, lines: bool
) -> None:
    """Run what has not ended; Ray starts when there is something to run."""
    cpus = _cpus()
    concurrent = concurrent if address else min(concurrent, cpus)
    with ExitStack() as stack:
        storage = functools.cache(lambda: stack.enter_context(ray_running(address, cpus, payload(setup))))
        for names in _stages(setup, task, trials):
            if names:
                run_trials(names, setup, storage(), concurrent=concurrent, early_stopping=early_stopping, lines=lines)


def train(
    task: str | Task,
    backbone: str | nn.Module | None = None,
    *,
    epochs: int,
    settings: ArchSettings | None = None,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    start: str | os.PathLike[str] | None = None,
    data: str | os.PathLike[str] | None = None,
    task_options: Mapping[str, Any] | None = None,
    progress: bool = True,
    device: str | None = None,
) -> TrainResult:
    """Train one network by the task's recipe, in this process; the run folder is that of a search with one trial.

    Args:
        settings: how the architecture is trained; None trains the plain backbone.
        task, backbone, epochs, seed, out, resume, start, data, task_options, progress, device: as in `search`.

    Raises:
        FileExistsError, FileNotFoundError, ValueError: wrong arguments; nothing has been written then.
        OSError: a file could not be written; the earlier ones are whole, and resume=True continues.
    """
    method = "backbone" if settings is None else "xd"
    given = Given(task, backbone, epochs, seed, out, resume, start, data, task_options, device)
    chosen = asdict(settings) if settings else None
    setup, loaded = prepare(given, (method,), {"verb": "train", "settings": chosen})
    values = {"lr": setup.recipe(loaded, method).lr}
    values |= {f"arch_{name}": value for name, value in (chosen or {}).items()}
    folder = setup.folder
    with (
        claimed(folder),
        resumable("training", folder),
        stopwatch(folder) as elapsed,
        watching(folder, epochs, progress),
    ):
        (name,) = add_trials(folder, method, [values])
        for _ in pending(folder, [name]):
            with suppress(Diverged):
                deque(run_trial(setup, loaded, name), maxlen=0)
        if not (folder / "results.json").is_file():
            _reported(finish(setup, loaded, (method,), elapsed()))
        return _train_result(setup, method, name)


def _stages(setup: Setup, task: Task, trials: int) -> Iterator[list[str]]:
    """Names of the trials that have not ended: backbone and rivals, then the supernets, which need the backbone's."""
    recipe = setup.recipe(task, "backbone")
    names = []
    for method in ("backbone", *task.rivals):
        settings = weight_settings(setup.recipe(task, method), trials, setup.seed, method)
        names += add_trials(setup.folder, method, settings)
    yield pending(setup.folder, names)
    best = best_trial(setup.folder, "backbone")
    lr = best.settings["lr"] if best else recipe.lr
    names = add_trials(setup.folder, "frozen", [{"lr": lr}])
    names += add_trials(setup.folder, "xd", architecture_settings(recipe, trials, setup.seed, setup.epochs, lr))
    yield pending(setup.folder, names)


def _train_result(setup: Setup, method: str, name: str) -> TrainResult:
    entry = read_result(setup).method(method)
    trial = read_trial(trial_folder(setup.folder, name))
    return TrainResult(
        name=method,
        valid=[float(epoch["valid"]) for epoch in trial.epochs],
        test=math.nan if entry["test"] is None else entry["test"],
        seconds=trial.seconds,
        diverged=trial.status == "diverged",
        settings=trial.settings,
        folder=setup.folder,
    )


def _cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
