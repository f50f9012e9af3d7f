"""The navigation: which pages stand in it, and what is left of it without those that are not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["named", "without"]


def named(nav: Any) -> Iterator[str]:
    """Every page of it, in order."""
    match nav:
        case str(page):
            yield page
        case list(entries):
            for entry in entries:
                yield from named(entry)
        case dict(titled):
            for entry in titled.values():
                yield from named(entry)


def without(nav: Any, is_there: Callable[[str], bool]) -> Any:
    """The same without missing pages, and without headings that nothing is left under. None: nothing is left."""
    match nav:
        case str(page):
            return page if is_there(page) else None
        case list(entries):
            return [kept for entry in entries if (kept := without(entry, is_there))] or None
        case dict(titled):
            return {title: kept for title, entry in titled.items() if (kept := without(entry, is_there))} or None
    return None
