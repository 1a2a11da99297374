"""Which run to continue, and with which settings: those that it was started with."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xdnas.flags import UsageError
from xdnas.search.runfolder import REPORT, read_json

RUNS = Path("runs")


def find_run(verb: str, task: str, out: str | None) -> Path:
    """The run folder to continue: `out`, or the newest unfinished run of that verb and task in runs/.

    A run is finished when its results.json and its report.html are there.

    Raises:
        FileNotFoundError: there is none.
        ValueError: the config.json in `out` is broken; one in runs/ is passed over, with a line on stderr.
        UsageError: `out` is of another task or verb.
    """
    return _newest(verb, task) if out is None else _named(verb, task, out)


def _named(verb: str, task: str, out: str) -> Path:
    config = Path(out) / "config.json"
    if not config.is_file():
        raise FileNotFoundError(f"nothing to resume in {out!r}: it holds no config.json; leave out --resume to start")
    if not _is_of(read_json(config), verb, task):
        raise UsageError(f"{out!r} holds no {verb} on {task!r}, so it cannot be resumed as one; see its config.json")
    return config.parent.absolute()


def _newest(verb: str, task: str) -> Path:
    unfinished = [path for path in RUNS.glob("*/config.json") if not _is_finished(path.parent)]
    matching = [path for path in unfinished if _is_of(_read(path), verb, task)]
    if not matching:
        others = f"; unfinished there: {', '.join(sorted(p.parent.name for p in unfinished))}" if unfinished else ""
        raise FileNotFoundError(
            f"no unfinished {verb} on {task!r} in {str(RUNS.absolute())!r}{others}. "
            "Leave out --resume to start one, or name its folder with --out"
        )
    return max(matching, key=lambda path: (path.stat().st_mtime_ns, path.parent.name)).parent.absolute()


def _is_finished(folder: Path) -> bool:
    return all((folder / name).is_file() for name in ("results.json", REPORT))


def _read(config: Path) -> dict[str, Any]:
    try:
        return read_json(config)
    except (ValueError, OSError) as error:
        print(f"xdnas: passed over: {error}", file=sys.stderr)
        return {}


def _is_of(config: Mapping[str, Any], verb: str, task: str) -> bool:
    return (config.get("verb"), config.get("task")) == (verb, task)


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
