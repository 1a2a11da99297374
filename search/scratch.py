"""Temporary files for Ray: a folder for a search, a secret for a process."""

import atexit
import functools
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def own_folder() -> Iterator[Path]:
    """A new temporary folder, removed at the end; those that killed processes left are removed first.

    A folder is in use for as long as the file `lock` in it is locked; one without that file is nobody's to remove.
    """
    import fcntl

    # socket paths below this folder may have 107 characters
    base = Path(tempfile.gettempdir() if len(tempfile.gettempdir()) <= 24 else "/tmp")
    for left in base.glob("xdnas-*"):
        _remove_left(left)
    folder = Path(tempfile.mkdtemp(prefix="xdnas-", dir=base))
    try:
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_left(folder: Path) -> None:
    import fcntl

    try:
        if folder.lstat().st_uid != os.getuid():
            return
        with (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except (BlockingIOError, FileNotFoundError, NotADirectoryError, PermissionError):
        # in use, or removed by another process in the meantime
        return


@functools.cache
def token() -> Path:
    """A secret for this process that only its user can read: the workers of a local Ray listen on the network.

    Every search of a process uses the same.
    """
    stack = ExitStack()
    atexit.register(stack.close)
    path = stack.enter_context(own_folder()) / "token"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    return path
