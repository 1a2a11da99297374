"""Trials side by side with Ray Tune.

Ray only hands out names of trials and decides which ones to stop early. Settings, results and checkpoints are in the
run folder, so nothing of Ray's own state has to survive.
"""

import atexit
import functools
import logging
import os
import pickle
import secrets
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from xdnas.search.runfolder import pending
from xdnas.search.trial import Setup, run_trial
from xdnas.tasks.train import Diverged

# what a diverged or failed trial reports in place of its metric: Tune takes no nan
SENTINEL = 1e30
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
    _set_environment(address)
    import ray

    own = not ray.is_initialized()
    folder = _own_folder()
    try:
        if own and address is not None:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        elif own:
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
        yield folder
    finally:
        if own:
            ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


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
    from ray import tune

    from xdnas.search.halving import Halving

    space = {"trial": tune.grid_search(list(names))}
    assert len(pickle.dumps(space)) < 2**16 or len(names) > 1000, "the search space holds names only"
    gpus = torch.cuda.device_count() if setup.device.startswith("cuda") else 0
    resources: dict[str, float] = {"cpu": 1, "gpu": min(1.0, gpus / concurrent)} if gpus else {"cpu": 1}
    tuner = tune.Tuner(
        tune.with_resources(tune.with_parameters(tune_trial, setup=setup), resources),
        param_space=space,
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
    grid = tuner.fit()
    results = [grid[i] for i in range(len(grid))]
    _check_ended(names, setup.folder, [(r.config, r.metrics, r.error) for r in results])


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
    open_ = pending(folder, names)
    if open_:
        text = "; ".join(f"{name}: {reasons.get(name) or 'its worker ended'}" for name in open_[:3])
        raise RuntimeError(
            f"{len(open_)} of {len(names)} trials failed: {text}. What is finished is kept; when the cause is gone, "
            f"continue with resume=True, out={str(folder)!r}"
        )


def _line(error: Exception | None) -> str:
    """The line that tells: the last of a worker's traceback, the first of what Ray says itself."""
    lines = [line.strip() for line in str(error or "").splitlines() if line.strip()]
    return lines[-1 if "Traceback" in str(error) or "ray::" in str(error) else 0] if lines else ""


def _set_environment(address: str | None) -> None:
    """Before Ray is imported: quiet, nothing in the home folder, Ctrl-C as everywhere else."""
    wanted = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_CHDIR_TO_TRIAL_DIR": "0",
        "RAY_AIR_NEW_OUTPUT": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "TUNE_DISABLE_SIGINT_HANDLER": "1",
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    }
    if address is None:
        wanted |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(_token())}
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)


def _own_folder() -> Path:
    """A new temporary folder that is named after this process; those that killed processes left are removed."""
    # socket paths below this folder may have 107 characters
    base = Path(tempfile.gettempdir() if len(tempfile.gettempdir()) <= 24 else "/tmp")
    for left in base.glob("xdnas-*-*"):
        process = left.name.split("-")[1]
        if process.isdigit() and left.owner() == Path.home().owner() and not _alive(int(process)):
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"xdnas-{os.getpid()}-", dir=base))


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


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


@functools.cache
def _token() -> Path:
    """A secret for this process that only its user can read: the workers of a local Ray listen on the network.

    Ray reads it once per process, so every search of a process uses the same.
    """
    folder = _own_folder()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "token"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    return path
