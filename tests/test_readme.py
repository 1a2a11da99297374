"""The README's Python runs as it stands."""

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


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
    names: dict[str, Any] = {}
    exec(search, names)
    assert "XD" in repr(names["model"])
    exec(BLOCKS[2], names)
    assert names["result"].method("xd")["test"] < 2


def test_every_file_that_the_pages_link_to_is_there() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)h][^)]*)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_nothing_is_left_to_fill_in() -> None:
    assert not re.findall(r"^[A-Z]+_[A-Z]+$", README, re.MULTILINE)


def test_every_flag_that_it_names_is_there() -> None:
    text = README
    from xdnas.flags import make_parser

    choices: list[Any] = [action.choices for action in make_parser()._actions if isinstance(action.choices, dict)]
    help_text = "".join(verb.format_help() for verbs in choices for verb in verbs.values())
    for flag in set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)):
        assert flag in help_text, flag


def test_the_layout_names_every_module() -> None:
    layout = (ROOT / "CONTRIBUTING.md").read_text()
    files = [*(ROOT / "xdnas").glob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    named = set(re.findall(r"\b\w+\b", layout))
    assert [f.name for f in files if f.stem not in named and f.stem != "__init__"] == []
