"""Which run to continue, and with which settings: those that it was started with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xdnas.flags import UsageError
from xdnas.search.runfolder import read_json

# what tells the config of a search from that of a single training
_MARK = {"search": "trials", "train": "settings"}
RUNS = Path("runs")


def find_run(verb: str, task: str, out: str | None) -> Path:
    """The run folder to continue: `out`, or the newest unfinished run of that verb and task in runs/.

    A run is finished when its results.json is there.

    Raises:
        FileNotFoundError: there is none.
        ValueError: a config.json is broken.
        UsageError: `out` is of another task or verb.
    """
    if out is not None:
        folder = Path(out)
        config = folder / "config.json"
        if not config.is_file():
            raise FileNotFoundError(
                f"nothing to resume in {out!r}: it holds no config.json; leave out --resume to start"
            )
        if not _is_of(read_json(config), verb, task):
            raise UsageError(
                f"{out!r} holds no {verb} on {task!r}, so it cannot be resumed as one; see its config.json"
            )
        return folder.absolute()
    open_ = [path for path in RUNS.glob("*/config.json") if not (path.parent / "results.json").is_file()]
    matching = [path for path in open_ if _is_of(read_json(path), verb, task)]
    if not matching:
        others = f"; unfinished there: {', '.join(sorted(path.parent.name for path in open_))}" if open_ else ""
        raise FileNotFoundError(
            f"no unfinished {verb} on {task!r} in {str(RUNS.absolute())!r}{others}. "
            "Leave out --resume to start one, or name its folder with --out"
        )
    return max(matching, key=lambda path: (path.stat().st_mtime_ns, path.parent.name)).parent.absolute()


def _is_of(config: Mapping[str, Any], verb: str, task: str) -> bool:
    return _MARK[verb] in config and config.get("task") == task


def settled(folder: Path, given: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a run, after checking that nothing given on the command line contradicts it.

    Args:
        folder: the run to continue.
        given: by flag, e.g. {"trials": 4}; None = not given. `start` is a path.
        options: task options that were given.

    Raises:
        UsageError: names what the run has and what was given.
    """
    config = read_json(folder / "config.json")
    wanted = {name: value for name, value in given.items() if value is not None}
    if "start" in wanted:
        wanted["start"] = str(Path(wanted["start"]).absolute())
    pairs = [(f"--{'from' if name == 'start' else name}", value, config.get(name)) for name, value in wanted.items()]
    had = config.get("task_options", {})
    pairs += [(f"task option {name}", value, had.get(name)) for name, value in options.items()]
    other = [f"{name} was {then!r}, not {value!r}" for name, value, then in pairs if value != then]
    if other:
        raise UsageError(
            f"{str(folder)!r} was started with other settings: {'; '.join(other)}. Leave these out to resume it, "
            "or leave out --resume to start a new run"
        )
    return config
