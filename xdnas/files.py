"""Writing a file whole or not at all."""

import os
import secrets
from pathlib import Path


def write_atomic(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Write under another name in the same folder, have it on the disk, then move it in place.

    The file is as readable to others as one that `open` makes (the umask counts). A link stays, its target is written.

    Raises:
        FileNotFoundError: the folder does not exist.
        OSError: the file cannot be written; an earlier one is still there then, and nothing else is left. Also for a
            folder, a device or a pipe, which a file would replace.
    """
    path = Path(path)
    if path.is_symlink():
        path = path.resolve()
    if path.exists() and not path.is_file():
        raise OSError(f"cannot write {path}: it is there and no regular file")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the folder {path.parent} does not exist")
    # a long name must not become too long
    temporary = path.with_name(f".{path.name[:40]}-{secrets.token_hex(6)}")
    try:
        with temporary.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
