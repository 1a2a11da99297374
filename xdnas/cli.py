"""The command line: xdnas search | train | data."""

import argparse
import errno
import os
import shlex
import sys
import traceback
from collections.abc import Sequence

from xdnas.flags import UsageError, parse

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# what is told in one line; anything else is surely a fault of xdnas and keeps its traceback
_EXPECTED = (ValueError, OSError, ArithmeticError, RuntimeError, ImportError, MemoryError)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; give the exit status: 0, 1 for an error, 2 for a wrong command line, 130 after Ctrl-C."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        args = parse(given)
        _run(args)
    except KeyboardInterrupt as error:
        print(f"\nxdnas: stopped{_continued(given) if error.args else ''}", file=sys.stderr)
        return 130
    except _EXPECTED as error:
        if "--debug" in given:
            traceback.print_exc()
        known = isinstance(error, (UsageError, OSError)) or "--debug" in given
        print(f"xdnas: error: {_one_line(error)}{'' if known else ' (--debug tells where)'}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


def _run(args: argparse.Namespace) -> None:
    from xdnas import commands

    {"search": commands.search, "train": commands.train, "data": commands.data}[args.verb](args)


def _continued(given: Sequence[str]) -> str:
    """How to go on; a run that has a folder says so in its KeyboardInterrupt."""
    again = given if "--resume" in given else [*given, "--resume"]
    return f"; every finished epoch is kept. Continue with: xdnas {shlex.join(again)}"


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, OSError) and error.errno in _FULL:
        where = f" ({error.filename})" if error.filename else ""
        return f"{os.strerror(error.errno)}{where}; what is finished is kept: make room, then continue with --resume"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.strerror}: {str(error.filename)!r}"
    return text


if __name__ == "__main__":
    sys.exit(main())
