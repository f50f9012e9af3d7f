"""Draws a state diagram as SVG: boxes where they are put, arrows between them, words on the arrows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from math import hypot
from typing import NamedTuple

__all__ = ["Arrow", "Diagram", "Loop", "draw"]

WIDE, HIGH = 104, 40  # of a box
LETTER, LINE = 6.4, 15  # of a label: pixels
DOTS = ("(start", "(end")  # of these there may be several: (start 2)
STYLE = (
    "rect.paper{fill:#fff}rect.box{fill:#eef1fb;stroke:#4a5a8a;stroke-width:1.5}rect.gap{fill:#fff}"
    "path{fill:none;stroke:#4a5a8a;stroke-width:1.3}text{font:12px sans-serif;fill:#222;text-anchor:middle}"
    "text.state{font-weight:bold;font-size:14px}circle{fill:#4a5a8a}circle.ring{fill:none;stroke:#4a5a8a}"
)


class Arrow(NamedTuple):
    """`shift` moves it aside, where two lead between the same boxes; `at` is where on its way the words stand."""

    source: str
    target: str
    words: str
    shift: float = 0
    at: float = 0.5


class Loop(NamedTuple):
    """From a box to itself, around a corner: -1 is left, and above; 1 is right, and below."""

    state: str
    words: str
    side: int = 1
    level: int = 1


class Diagram(NamedTuple):
    title: str
    size: tuple[int, int]
    places: Mapping[str, tuple[float, float]]
    arrows: tuple[Arrow, ...]
    loops: tuple[Loop, ...] = ()

    @property
    def states(self) -> set[str]:
        return {name for name in self.places if not name.startswith(DOTS)}


def draw(diagram: Diagram) -> str:
    wide, high = diagram.size
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}">',
        f"<title>{escape(diagram.title)}</title><style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0L8 4L0 8z" style="fill:#4a5a8a;stroke:none"/></marker></defs>',
        f'<rect class="paper" width="{wide}" height="{high}" rx="6"/>',
    ]
    lines += [line for arrow in diagram.arrows for line in _arrow(diagram, arrow)]
    lines += [line for loop in diagram.loops for line in _loop(diagram, loop)]
    lines += [line for name in diagram.places for line in _place(diagram, name)]
    lines += [line for arrow in diagram.arrows for line in _words(arrow.words, *_on_the_way(diagram, arrow))]
    return "\n".join([*lines, "</svg>", ""])


def _place(diagram: Diagram, name: str) -> Iterator[str]:
    x, y = diagram.places[name]
    if name.startswith("(start"):
        yield f'<circle cx="{x:g}" cy="{y:g}" r="7"/>'
    elif name.startswith("(end"):
        yield f'<circle cx="{x:g}" cy="{y:g}" r="5"/><circle class="ring" cx="{x:g}" cy="{y:g}" r="9"/>'
    else:
        yield f'<rect class="box" x="{x - WIDE / 2:g}" y="{y - HIGH / 2:g}" width="{WIDE}" height="{HIGH}" rx="8"/>'
        yield f'<text class="state" x="{x:g}" y="{y + 5:g}">{name}</text>'


def _arrow(diagram: Diagram, arrow: Arrow) -> Iterator[str]:
    (ax, ay), (bx, by) = _ends(diagram, arrow)
    yield f'<path d="M{ax:.1f} {ay:.1f}L{bx:.1f} {by:.1f}" marker-end="url(#tip)"/>'


def _loop(diagram: Diagram, loop: Loop) -> Iterator[str]:
    x, y = diagram.places[loop.state]
    edge, brim = x + loop.side * WIDE / 2, y + loop.level * HIGH / 2
    y, far, deep, inner = y + loop.level * 8, edge + loop.side * 40, brim + loop.level * 40, edge - loop.side * 16
    bend = f"M{edge:g} {y:g}C{far:g} {y:g} {inner:g} {deep:g} {inner:g} {brim:g}"
    yield f'<path d="{bend}" marker-end="url(#tip)"/>'
    yield from _words(loop.words, edge + loop.side * (24 + LETTER * _longest(loop.words) / 2), brim + loop.level * 20)


def _words(words: str, x: float, y: float) -> Iterator[str]:
    """One line under the other, around the point, on a patch that keeps arrows away."""
    lines = words.split("\n")
    wide, top = LETTER * _longest(words) + 6, y - LINE * len(lines) / 2
    yield f'<rect class="gap" x="{x - wide / 2:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{LINE * len(lines)}"/>'
    for number, line in enumerate(lines):
        yield f'<text x="{x:.1f}" y="{top + LINE * number + 11:.1f}">{escape(line)}</text>'


def _longest(words: str) -> int:
    return max(map(len, words.split("\n")))


def _on_the_way(diagram: Diagram, arrow: Arrow) -> tuple[float, float]:
    (ax, ay), (bx, by) = _ends(diagram, arrow)
    return ax + (bx - ax) * arrow.at, ay + (by - ay) * arrow.at


def _ends(diagram: Diagram, arrow: Arrow) -> tuple[tuple[float, float], tuple[float, float]]:
    (ax, ay), (bx, by) = diagram.places[arrow.source], diagram.places[arrow.target]
    length = hypot(bx - ax, by - ay)
    dx, dy = (bx - ax) / length, (by - ay) / length
    sx, sy = -dy * arrow.shift, dx * arrow.shift
    start, end = _reach(arrow.source, dx, dy, sx, sy), _reach(arrow.target, -dx, -dy, sx, sy)
    return (ax + sx + dx * start, ay + sy + dy * start), (bx + sx - dx * end, by + sy - dy * end)


def _reach(name: str, dx: float, dy: float, sx: float, sy: float) -> float:
    """How far an arrow runs under its box before it comes out."""
    if name.startswith(DOTS):
        return 10
    sideways = (WIDE / 2 - sx * (1 if dx > 0 else -1)) / abs(dx) if dx else float("inf")
    upright = (HIGH / 2 - sy * (1 if dy > 0 else -1)) / abs(dy) if dy else float("inf")
    return min(sideways, upright)
