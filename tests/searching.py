"""What the tests of a search share."""

import json
from pathlib import Path
from typing import Any

from smalltask import net

from xdnas.search.prepare import Given, prepare
from xdnas.search.runfolder import trial_folder
from xdnas.search.trial import Setup
from xdnas.tasks.task import Task

SETTINGS = {"lr": 3e-3, "arch_optimizer": "adam", "arch_lr": 1e-2, "arch_momentum": 0.0, "arch_warmup": 0}


def setup(folder: Path, task: Task, epochs: int = 3, **changes: Any) -> Setup:
    given = {"task": task, "backbone": net(), "epochs": epochs, "out": folder, **changes}
    return prepare(Given(**given), ("xd",), {})[0]


def valids(folder: Path, name: str) -> list[float]:
    lines = (trial_folder(folder, name) / "epochs.jsonl").read_text().splitlines()
    return [json.loads(line)["valid"] for line in lines]
