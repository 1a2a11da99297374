"""Searches that end by Ctrl-C or are killed, each in a process of its own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from searching import valids
from smalltask import small_task
from torch import Tensor, nn

from xdnas.search import search
from xdnas.search.runfolder import trial_folder

# each its own process, as from a notebook: everything of the user's is defined in __main__

NOTEBOOK = """
import sys, time
sys.path.insert(0, {tests!r})
import torch
from torch import nn
from smalltask import small_task
from xdnas.search import search

class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv1d(1, 1, 3, padding=1)
    def forward(self, x):
        return self.conv(x)

def loss(prediction, target):
    time.sleep({delay})
    return (prediction - target).square().mean()

result = search(small_task(loss=loss), Mine(), trials=1, epochs=4, out={out!r}, resume={resume})
print("test", *[entry["test"] for entry in result.methods])
"""


def notebook(out: Path, *, resume: bool, delay: float) -> "subprocess.Popen[str]":
    code = NOTEBOOK.format(tests=str(Path(__file__).parent), out=str(out), resume=resume, delay=delay)
    command = [sys.executable, "-"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(code)
    process.stdin.close()
    process.stdin = None
    return process


def interrupted(out: Path, number: signal.Signals) -> str:
    process = notebook(out, resume=False, delay=0.3)
    rows = trial_folder(out, "backbone-0") / "epochs.jsonl"
    deadline = time.monotonic() + 60
    while not rows.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    # an uncaught KeyboardInterrupt ends Python by the signal itself
    assert process.returncode == -number
    return errors


class Mine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv1d(1, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return y


def loss(prediction: Tensor, target: Tensor) -> Tensor:
    return (prediction - target).square().mean()


def test_ctrl_c_keeps_what_is_done_and_resume_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    errors = interrupted(out, signal.SIGINT)
    assert f"search stopped; it continues with the same arguments, resume=True and out={str(out)!r}" in errors
    done = valids(out, "backbone-0")
    assert 1 <= len(done) < 4
    result = search(small_task(loss=loss), Mine(), trials=1, epochs=4, out=out, resume=True, progress=False)
    assert [entry["trials"] for entry in result.methods] == [1, 1, 1]
    assert len(valids(out, "backbone-0")) == 4
    assert valids(out, "backbone-0")[: len(done)] == done


@pytest.mark.slow
def test_a_killed_search_resumes_quietly(tmp_path: Path) -> None:
    out = tmp_path / "run"
    interrupted(out, signal.SIGKILL)
    done = valids(out, "backbone-0")
    second = notebook(out, resume=True, delay=0.0)
    output, errors = second.communicate(timeout=100)
    assert second.returncode == 0, errors
    assert errors == ""
    lines = output.splitlines()
    assert {line.split(":")[0] for line in lines[:-1]} == {"backbone-0", "frozen-0", "xd-0"}
    assert lines[-1].startswith("test ")
    assert valids(out, "backbone-0")[: len(done)] == done
    assert torch.load(out / "best" / "xd.pt", weights_only=True).keys() >= {"conv.weight", "conv.K.0.factors"}


@pytest.mark.slow
def test_a_python_whose_path_has_spaces(tmp_path: Path) -> None:
    link = tmp_path / "a folder with spaces"
    link.symlink_to(sys.prefix, target_is_directory=True)
    options = [f"--option={o}" for o in ("train=20", "valid=4", "test=4", "resolution=32")]
    arguments = ["search", "burgers", "--trials", "1", "--epochs", "1", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [str(link / "bin" / "python"), "-m", "xdnas.cli", *arguments, *options],
        env={**os.environ, "XDNAS_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "results.json").is_file()
