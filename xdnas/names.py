"""Names that were mistyped."""

import difflib
from collections.abc import Iterable


def near(name: str, known: Iterable[str]) -> str:
    """To be put behind an unknown name: " (did you mean 'depth'?)", or nothing when none of the known is near."""
    close = difflib.get_close_matches(name, list(known), n=2)
    return f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""
