"""The flags of every command, and what is wrong with a command line."""

import argparse
import json
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from xdnas.names import near


class UsageError(ValueError):
    """The command line cannot be meant as it is written."""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are exceptions."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def parse(given: Sequence[str]) -> argparse.Namespace:
    """Read a command line; names of tasks and backbones are checked.

    Raises:
        UsageError: says what is wrong with it.
    """
    parser = make_parser()
    args, unknown = parser.parse_known_args(given)
    if unknown:
        flags = {flag for action in _verbs(parser)[args.verb]._actions for flag in action.option_strings}
        raise UsageError(f"unknown argument {unknown[0]!r}{near(unknown[0], flags)}; see xdnas {args.verb} --help")
    from xdnas.backbones import BACKBONES
    from xdnas.tasks import TASKS

    _known("task", args.task, TASKS)
    if getattr(args, "backbone", None) is not None:
        _known("backbone", args.backbone, BACKBONES)
    return args


def _known(what: str, name: str, names: Iterable[str]) -> None:
    known = list(names)
    if name not in known:
        raise UsageError(f"unknown {what} {name!r}{near(name, known)}; known: {', '.join(known)}")


def _verbs(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (action,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(action.choices)


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    from importlib.metadata import version

    parser = _Parser(
        prog="xdnas",
        description="Neural architecture search over operations: the convolutions of a network become XD-operations "
        "that start as the same convolutions, and are trained on from there.",
        epilog=_MAIN_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"xdnas {version('xdnas')}")
    verbs = parser.add_subparsers(dest="verb", metavar="COMMAND", required=True)
    _add_search(verbs)
    _add_train(verbs)
    _add_data(verbs)
    return parser


_MAIN_EPILOG = """\
examples:
  xdnas data burgers              generate the data of Burgers' equation and look at them
  xdnas search burgers            search from the task's own backbone; a few minutes on two cores
  xdnas search burgers --resume   continue it after Ctrl-C
  xdnas search --help             all about searching
"""

_SEARCH_EPILOG = """\
examples:
  xdnas search burgers
  xdnas search burgers --trials 8 --epochs 40 --option resolution=1024
  xdnas search cifar10-permuted --backbone lenet --data ~/data --out runs/lenet
  xdnas search cifar10 --backbone resnet20 --from resnet20.pt --trials 4 --epochs 8
  xdnas search burgers --resume

The backbone, its supernet and the task's other networks are trained with the same number of trials and epochs. Tables
and a report (report.html in the run folder) compare them; the last line printed is the run folder.
"""

_TRAIN_EPILOG = """\
examples:
  xdnas train burgers                    the supernet, with the task's settings of the architecture's optimizer
  xdnas train burgers --plain            the backbone itself
  xdnas train burgers --arch-optimizer sgd --arch-lr 0.1 --arch-momentum 0.5 --arch-warmup 2
"""

_DATA_EPILOG = """\
examples:
  xdnas data burgers --option resolution=1024
  xdnas data cifar10 --data ~/data
"""


def _add_verb(verbs: Any, name: str, purpose: str, epilog: str) -> argparse.ArgumentParser:
    from xdnas.tasks import TASKS

    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=purpose,
        description=purpose[0].upper() + purpose[1:] + ".",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("task", metavar="TASK", help=f"one of: {', '.join(TASKS)}")
    parser.add_argument(
        "--data", metavar="PATH", help="file or folder with the task's data (default: $XDNAS_DATA, or generated)"
    )
    parser.add_argument(
        "--option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        type=_option,
        help=f"an option of the task, may be given several times ({_task_options()})",
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def _task_options() -> str:
    from xdnas.tasks import TASKS, option_names

    return "; ".join(f"{task}: {', '.join(option_names(task))}" for task in TASKS)


def _add_run(parser: argparse.ArgumentParser) -> None:
    from xdnas.backbones import BACKBONES
    from xdnas.tasks import BUDGETS

    epochs = ", ".join(f"{name} {budget.epochs}" for name, budget in BUDGETS.items())
    parser.add_argument("--backbone", metavar="NAME", help=f"one of: {', '.join(BACKBONES)} (default: the task's own)")
    parser.add_argument("--epochs", metavar="N", type=_count, help=f"of every trial (default: {epochs})")
    parser.add_argument(
        "--seed", metavar="N", type=_seed, help="of weights, order of samples and settings (default: 0)"
    )
    parser.add_argument(
        "--out", metavar="DIR", help="run folder, must be new unless resumed (default: runs/TASK-DATE-TIME)"
    )
    parser.add_argument(
        "--device",
        metavar="NAME",
        help="cpu, cuda, or cuda:1 for one of several; may change when resumed (default: cuda if there is one)",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue the run in --out, or the newest unfinished one of the task in runs/, with its own settings",
    )
    parser.add_argument(
        "--from",
        dest="start",
        metavar="CHECKPOINT",
        help="weights of a trained backbone to start from: a state_dict saved by torch.save, or .safetensors",
    )


def _add_search(verbs: Any) -> None:
    from xdnas.tasks import BUDGETS

    purpose = "find the best settings of the architecture's optimizer and compare the supernet with its backbone"
    parser = _add_verb(verbs, "search", purpose, _SEARCH_EPILOG)
    _add_run(parser)
    trials = ", ".join(f"{name} {budget.trials}" for name, budget in BUDGETS.items())
    parser.add_argument("--trials", metavar="N", type=_count, help=f"of every method (default: {trials})")
    parser.add_argument(
        "--address", metavar="HOST:PORT", help="head of a Ray cluster to run on (default: the cores of this machine)"
    )


def _add_train(verbs: Any) -> None:
    purpose = "train one network: the supernet with fixed settings, or the plain backbone"
    parser = _add_verb(verbs, "train", purpose, _TRAIN_EPILOG)
    _add_run(parser)
    kind = parser.add_argument_group("the network", "the supernet with the task's own settings, unless told otherwise")
    kind.add_argument("--plain", action="store_true", help="train the backbone as it is, without XD-operations")
    kind.add_argument("--arch-optimizer", choices=("sgd", "adam"), help="of the architecture parameters")
    kind.add_argument("--arch-lr", metavar="X", type=float, help="its step size; 0 keeps the architecture at its start")
    kind.add_argument("--arch-momentum", metavar="X", type=float, help="of sgd")
    kind.add_argument("--arch-warmup", metavar="N", type=_seed, help="epochs at the start with a fixed architecture")


def _add_data(verbs: Any) -> None:
    _add_verb(verbs, "data", "generate or check the data of a task and tell what they hold", _DATA_EPILOG)


def _option(text: str) -> tuple[str, Any]:
    """`key=value` with the value as JSON where it is JSON: a number, true, false, null; else as text."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE, e.g. resolution=1024")
    try:
        return name.strip(), json.loads(value, parse_constant=_refuse)
    except ValueError:
        return name.strip(), value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no value")


def _count(text: str) -> int:
    return _whole(text, 1)


def _seed(text: str) -> int:
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    if not text.strip().isascii() or not text.strip().isdigit() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return int(text)
