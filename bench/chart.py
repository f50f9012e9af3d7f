"""The goals as a chart, written by hand: bars whose marks line up, whatever the goal's own size is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from .findings import Line
from .words import goal, value, value_with_spread

__all__ = ["chart", "write_chart"]

WIDTH = 1220
LABEL, BAR, VALUE = 500, 530, 880  # where labels end, bars begin and figures begin
LENGTH = 330  # of the longest bar
ROW, HEAD = 26, 44
COLOURS = {"met": "#1b7f79", "aim met": "#1b7f79", "floor met": "#7fbfb6", "missed": "#c8553d", "shown": "#cbd2d9"}
INK, FAINT, LIGHT = "#1f2933", "#616e7c", "#9aa5b1"


def write_chart(path: Path, lines: Sequence[Line], subtitle: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(chart(lines, subtitle), encoding="utf-8")


def chart(lines: Sequence[Line], subtitle: str) -> str:
    """Goals to reach come first, then limits to stay under, then what has no goal."""
    goals = [line for line in lines if line.verdict != "shown"]
    parts, y = [_title(subtitle)], 96
    for title, most, group in (
        (
            "More is better: the dark mark is the aim, the light one the floor",
            1.8,
            [_ for _ in goals if not _.lower_is_better],
        ),
        ("Less is better: the mark is the limit", 1.5, [_ for _ in goals if _.lower_is_better]),
        ("Shown without a goal: the mark is 1×, as fast as the other", 3.0, [_ for _ in lines if _ not in goals]),
    ):
        if group:
            parts.append(_text(24, y, title, size=14, weight="bold"))
            parts += _bars(group, y + 12, most)
            y += HEAD + ROW * len(group)
    return _document("\n".join(parts), y)


def _document(content: str, height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="system-ui, -apple-system, Segoe UI, DejaVu Sans, sans-serif">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>\n{content}\n</svg>\n'
    )


def _title(subtitle: str) -> str:
    return "\n".join(
        [
            _text(24, 36, "Twiceproof beside the raw stores and a peer", size=20, weight="bold"),
            _text(24, 60, subtitle, colour=FAINT),
        ]
    )


def _bars(lines: Sequence[Line], top: int, most: float) -> Iterator[str]:
    """`most` aims fill the longest bar: all aims of a group stand below each other."""
    for number, line in enumerate(lines):
        y = top + number * ROW
        full = most * (line.aim or 1.0)
        yield _text(LABEL, y + 17, f"{line.part}: {line.text}", anchor="end")
        yield _bar(line, y + 5, full)
        yield from _marks(line, y, full)
        yield _whisker(line, y + 13, full)
        yield _figures(line, y + 17)


def _bar(line: Line, y: int, full: float) -> str:
    length = _length(line.value.median, full)
    cut = line.value.median > full  # shown by its open end
    colour = COLOURS[line.verdict]
    bar = f'<rect x="{BAR}" y="{y}" width="{length:.1f}" height="16" rx="2" fill="{colour}"/>'
    arrow = f'<path d="M{BAR + LENGTH} {y - 2} l10 10 l-10 10 z" fill="{colour}"/>'
    return bar + arrow if cut else bar


def _marks(line: Line, y: int, full: float) -> Iterator[str]:
    marks = {line.floor or 1.0: LIGHT, line.aim or 1.0: INK}  # one mark where they are the same
    for mark, colour in marks.items():
        x = BAR + _length(mark, full)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + ROW}" stroke="{colour}" stroke-width="2"/>'


def _whisker(line: Line, y: int, full: float) -> str:
    """From the lowest round to the highest."""
    low, high = (BAR + _length(number, full) for number in (line.value.low, line.value.high))
    return f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}" stroke="{INK}" stroke-width="1"/>'


def _figures(line: Line, y: int) -> str:
    spread = value_with_spread(line.value, line.unit).removeprefix(value(line.value.median, line.unit))
    wanted = goal(line)
    rest = f"{spread}  {wanted + ': ' if wanted else ''}{line.verdict}".strip()
    bold = f'<tspan font-weight="bold">{escape(value(line.value.median, line.unit))}</tspan>'
    return (
        f'<text x="{VALUE}" y="{y}" font-size="12" fill="{INK}">{bold}'
        f'<tspan fill="{FAINT}" dx="6">{escape(rest)}</tspan></text>'
    )


def _length(number: float, full: float) -> float:
    return LENGTH * min(1.0, number / full)


def _text(
    x: int, y: int, text: str, *, size: int = 12, weight: str = "normal", anchor: str = "start", colour: str = INK
) -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="{colour}">{escape(text)}</text>'
    )
