"""The README's Python runs as it stands."""

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_swap_runs(capsys: pytest.CaptureFixture[str]) -> None:
    swap = BLOCKS[0]
    assert len(swap.strip().splitlines()) <= 6
    names: dict[str, object] = {}
    exec(swap, names)
    assert "XD" not in repr(names["model"])
    assert "swapped" in capsys.readouterr().out


@pytest.mark.slow
def test_the_search_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = '"resolution": 32, "train": 20, "valid": 4, "test": 4'
    search = BLOCKS[1].replace("trials=4, epochs=20", "trials=1, epochs=1").replace('"resolution": 256', small)
    names: dict[str, object] = {}
    exec(search, names)
    assert "XD" in repr(names["model"])


def test_every_flag_and_file_that_it_names_is_there() -> None:
    text = (ROOT / "README.md").read_text()
    for link in re.findall(r"\]\(([^)h][^)]*)\)", text):
        assert (ROOT / link).exists(), link
    from xdnas.flags import make_parser

    choices: list[Any] = [action.choices for action in make_parser()._actions if isinstance(action.choices, dict)]
    help_text = "".join(verb.format_help() for verbs in choices for verb in verbs.values())
    for flag in set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)):
        assert flag in help_text, flag
