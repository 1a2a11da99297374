"""Trials side by side with Ray Tune.

Ray only hands out names of trials and decides which ones to stop early. Settings, results and checkpoints are in the
run folder, so nothing of Ray's own state has to survive.
"""

import logging
import os
import shlex
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from xdnas.search.runfolder import pending, trial_folder
from xdnas.search.scratch import own_folder, token
from xdnas.search.trial import Setup, run_trial
from xdnas.tasks.train import Diverged

if TYPE_CHECKING:
    from ray import tune

# what a diverged or failed trial reports in place of its metric: Tune takes no nan
SENTINEL = 1e30
WORKER_THREADS = 1
# file of a trial that a worker has taken
_WORKER = "started"
# seconds until it is told that no worker has taken a trial
_PATIENCE = 120.0
_LOCAL = ("127.", "localhost", "0.0.0.0", "[::1]")


def check_address(address: str | None) -> None:
    """Refuse an address that is no host:port of a cluster.

    Raises:
        ValueError: says what is wrong with it.
    """
    if address is None:
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"search: address {address!r} must be host:port of the head of a Ray cluster")
    if host.startswith(_LOCAL):
        raise ValueError(f"search: address {address!r} hangs in Ray; give the address of the host in its network")


@contextmanager
def ray_running(address: str | None, cpus: int, payload: int) -> Iterator[Path]:
    """Ray for the time of a search: a local one of its own, a cluster, or the one that this process already uses.

    Args:
        address: host:port of a cluster whose nodes have xdnas installed and share the run folder; None = local.
        cpus: of a local one.
        payload: bytes of data that trials are given as objects.

    Yields:
        A folder for Ray's own files, removed afterwards.
    """
    with _environment(address), own_folder() as folder:
        import ray

        own = not ray.is_initialized()
        try:
            if own and address is not None:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            elif own:
                _start_local(folder, cpus, payload)
            yield folder
        finally:
            if own:
                ray.shutdown()


def _start_local(folder: Path, cpus: int, payload: int) -> None:
    import ray

    with _import_path():
        ray.init(
            address="local",
            num_cpus=cpus,
            num_gpus=torch.cuda.device_count(),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=100 * 2**20 + 2 * payload,
            # Ray gives this to a shell as it is
            runtime_env={"py_executable": shlex.quote(sys.executable)},
            _temp_dir=str(folder),
        )


def run_trials(
    names: Sequence[str],
    setup: Setup,
    storage: Path,
    *,
    concurrent: int,
    early_stopping: bool,
    lines: bool,
) -> None:
    """Run trials whose folders are prepared, several at once, until each has ended.

    Raises:
        RuntimeError: a trial failed; the others have ended, and nothing of them is lost.
        KeyboardInterrupt: the user stopped it.
    """
    for name in names:
        (trial_folder(setup.folder, name) / _WORKER).unlink(missing_ok=True)
    with _waiting(names, setup.folder, storage):
        grid = _tuner(names, setup, storage, concurrent, early_stopping, lines).fit()
    results = [grid[i] for i in range(len(grid))]
    _check_ended(names, setup.folder, [(r.config, r.metrics, r.error) for r in results])


def _tuner(
    names: Sequence[str], setup: Setup, storage: Path, concurrent: int, early_stopping: bool, lines: bool
) -> "tune.Tuner":
    from ray import tune

    from xdnas.search.halving import Halving

    gpus = torch.cuda.device_count() if setup.device.startswith("cuda") else 0
    resources: dict[str, float] = {"cpu": 1, "gpu": min(1.0, gpus / concurrent)} if gpus else {"cpu": 1}
    return tune.Tuner(
        tune.with_resources(tune.with_parameters(tune_trial, setup=setup), resources),
        param_space={"trial": tune.grid_search(list(names))},
        tune_config=tune.TuneConfig(
            metric="valid",
            mode="min",
            scheduler=Halving(setup.folder, setup.epochs, early_stopping, lines),
            search_alg=tune.search.BasicVariantGenerator(max_concurrent=concurrent, random_state=setup.seed),
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name=names[0],
            storage_path=str(storage / "tune"),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=2),
        ),
    )


@contextmanager
def _waiting(names: Sequence[str], folder: Path, storage: Path) -> Iterator[None]:
    """Say so if no worker takes a trial: Ray itself waits for workers that cannot start, silently and for ever."""

    def tell() -> None:
        if any((trial_folder(folder, name) / _WORKER).is_file() for name in names):
            return
        own = storage / "session_latest" / "logs"
        print(
            f"xdnas: no trial has started in {_PATIENCE:g} seconds: Ray's workers cannot start, or they wait for "
            f"CPUs or GPUs. Ray's logs are in {own if own.is_dir() else '/tmp/ray/session_latest/logs'}",
            file=sys.stderr,
            flush=True,
        )

    timer = threading.Timer(_PATIENCE, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def payload(setup: Setup) -> int:
    """Bytes that trials are given as objects: nothing for names, else the samples and weights."""
    task, network = setup.task, setup.backbone
    samples = [] if isinstance(task, str) else [*task.train.tensors, *task.valid.tensors, *task.test.tensors]
    weights = [] if isinstance(network, str) else list(network.state_dict().values())
    return sum(tensor.nbytes for tensor in [*samples, *weights])


def tune_trial(config: dict[str, Any], setup: Setup) -> None:
    """What a worker of Ray runs. An exception of the trial is reported, so that only a dead worker is tried again."""
    from ray import tune

    number = 0
    try:
        # a trial has one CPU
        torch.set_num_threads(WORKER_THREADS)
        (trial_folder(setup.folder, config["trial"]) / _WORKER).touch()
        for epoch in run_trial(setup, setup.load_task(), config["trial"]):
            number = epoch.number
            tune.report({"epoch": number, "valid": epoch.valid})
    except Diverged:
        tune.report({"epoch": number + 1, "valid": SENTINEL, "done": True})
    except Exception as error:  # noqa: BLE001  raised again in the main process
        tune.report(
            {"epoch": number + 1, "valid": SENTINEL, "failed": f"{type(error).__name__}: {error}", "done": True}
        )


def _check_ended(
    names: Sequence[str], folder: Path, rows: Sequence[tuple[Any, Mapping[str, Any] | None, Exception | None]]
) -> None:
    reasons = {
        config["trial"]: (metrics or {}).get("failed") or _line(error) for config, metrics, error in rows if config
    }
    left = pending(folder, names)
    if left:
        text = "; ".join(f"{name}: {reasons.get(name) or 'its worker ended'}" for name in left[:3])
        raise RuntimeError(
            f"{len(left)} of {len(names)} trials failed: {text}. What is finished is kept; when the cause is gone, "
            f"continue with resume=True, out={str(folder)!r}"
        )


def _line(error: Exception | None) -> str:
    """The line that tells: the last of a worker's traceback, the first of what Ray says itself."""
    lines = [line.strip() for line in str(error or "").splitlines() if line.strip()]
    return lines[-1 if "Traceback" in str(error) or "ray::" in str(error) else 0] if lines else ""


@contextmanager
def _environment(address: str | None) -> Iterator[None]:
    """Ray reads these when it starts: quiet, nothing in the home folder, Ctrl-C as everywhere else; undone at the end.

    What the user has set stays as it is.
    """
    wanted = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_CHDIR_TO_TRIAL_DIR": "0",
        "RAY_AIR_NEW_OUTPUT": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "TUNE_DISABLE_SIGINT_HANDLER": "1",
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    }
    if address is None:
        wanted |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token())}
    ours = {name: value for name, value in wanted.items() if name not in os.environ}
    logger = logging.getLogger("ray.tune")
    level = logger.level
    os.environ.update(ours)
    logger.setLevel(logging.CRITICAL)
    try:
        _read_again()
        yield
    finally:
        logger.setLevel(level)
        for name in ours:
            os.environ.pop(name, None)
        _read_again()


def _read_again() -> None:
    """Ray reads how it is protected when it is imported, and keeps the token: let it look anew, unless it is in use."""
    import ray
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    if not ray.is_initialized():
        # in this order: a thread that is about to end may still ask for the token
        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def _import_path() -> Iterator[None]:
    """Let workers that are started now import what this process can, e.g. a module beside the user's script."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
