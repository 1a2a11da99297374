"""A page of HTML that stands alone: no script, nothing loaded from elsewhere, light and dark, phone and screen."""

from collections.abc import Iterable, Sequence
from html import escape

_CSS = """
:root { color-scheme: light dark; --line: #8886; --soft: #8881; --quiet: color-mix(in srgb, CanvasText 65%, Canvas); }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 66rem;
       font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.1rem; margin: 2.5rem 0 .5rem; padding-top: .75rem; border-top: 1px solid var(--line); }
p { margin: .4rem 0; max-width: 44rem; }
.quiet, figcaption { color: var(--quiet); font-size: .875rem; }
.lead { font-size: 1.15rem; margin: .75rem 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .9rem .3rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--soft); }
th { font-weight: 600; border-bottom-color: var(--line); white-space: nowrap; }
.right { text-align: right; white-space: nowrap; }
.best td { font-weight: 600; }
.swatch { display: inline-block; width: .7em; height: .7em; border-radius: 2px; margin-right: .45em; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); gap: 1.5rem; }
figure { margin: 0; max-width: 34rem; }
svg { width: 100%; height: auto; display: block; }
details { margin: .5rem 0; }
summary { cursor: pointer; }
"""


class Html(str):
    """Text that is HTML already; any other string is escaped."""


def text(value: object) -> Html:
    """A value as HTML: escaped, unless it is `Html`."""
    return value if isinstance(value, Html) else Html(escape(str(value)))


def tag(name: str, *content: object, css: str = "") -> Html:
    """An element around its content."""
    look = f' class="{escape(css)}"' if css else ""
    return Html(f"<{name}{look}>{''.join(map(text, content))}</{name}>")


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[int] = (), best: Iterable[int] = ()
) -> Html:
    """A table that scrolls sideways where it is too wide.

    Args:
        columns: their names.
        rows: cells.
        right: numbers of the columns of figures.
        best: numbers of the rows to stress.
    """
    right, best = set(right), set(best)

    def line(kind: str, cells: Sequence[object]) -> Html:
        return Html("".join(tag(kind, cell, css="right" if i in right else "") for i, cell in enumerate(cells)))

    body = [tag("tr", line("td", cells), css="best" if i in best else "") for i, cells in enumerate(rows)]
    whole = tag("table", tag("thead", tag("tr", line("th", columns))), tag("tbody", *body))
    return tag("div", whole, css="wide")


def picture(svg: str, caption: str) -> Html:
    """A picture with a line below it."""
    return tag("figure", Html(svg), tag("figcaption", caption) if caption else "")


def swatch(colour: str) -> Html:
    """A small square of a colour."""
    return Html(f'<span class="swatch" style="background:{escape(colour)}"></span>')


def document(title: str, *content: object) -> str:
    """The whole page."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n"
        + "\n".join(map(text, content))
        + "\n</body>\n</html>\n"
    )
