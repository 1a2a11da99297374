import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from xdnas import save_architecture, swap
from xdnas.files import write_atomic


def test_only_regular_files_are_replaced_and_links_stay(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(OSError, match="it is there and no regular file"):
            write_atomic(tmp_path / name, "x")
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_atomic(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_file_is_as_readable_as_others(umask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        write_atomic(tmp_path / "file", "text")
        model = nn.Sequential(nn.Conv1d(1, 1, 3, padding=1))
        swap(model, torch.randn(1, 1, 8))
        save_architecture(model, tmp_path / "architecture")
    finally:
        os.umask(before)
    assert [entry.stat().st_mode & 0o777 for entry in tmp_path.iterdir()] == [mode, mode]


def test_the_content_is_on_the_disk_before_the_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def noted(name: str) -> None:
        original = getattr(os, name)

        def call(*args: Any) -> None:
            calls.append(name)
            original(*args)

        monkeypatch.setattr(os, name, call)

    noted("fsync")
    noted("replace")
    write_atomic(tmp_path / "file", "ä")
    assert calls == ["fsync", "replace"]
    assert (tmp_path / "file").read_bytes() == "ä".encode()


def test_a_write_that_fails_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")
    script = (
        "import resource, sys\nfrom xdnas.files import write_atomic\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\nwrite_atomic(sys.argv[1], b'x' * 100)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert "OSError: [Errno 27] File too large" in done.stderr
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_nothing_is_left_behind(error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise error

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(type(error)):
        write_atomic(tmp_path / "file", b"new")
    assert list(tmp_path.iterdir()) == []


def test_long_names_and_missing_folders(tmp_path: Path) -> None:
    write_atomic(tmp_path / ("x" * 255), b"new")
    with pytest.raises(FileNotFoundError, match=r"cannot write .*/no/file: the folder .*/no does not exist"):
        write_atomic(tmp_path / "no" / "file", b"new")
