"""Every rejection: bad input gives one clear error before anything is changed."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

Row = tuple[str, Callable[[], object], type[Exception], str]


def gather() -> list[Row]:
    rows: list[Row] = []
    for path in sorted(Path(__file__).parent.glob("wrong_inputs_*.py")):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        rows += module.ROWS
    return rows


@pytest.mark.parametrize(("give", "error", "message"), [pytest.param(*row[1:], id=row[0]) for row in gather()])
def test_wrong_input(give: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        give()
