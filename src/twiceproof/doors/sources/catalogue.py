"""The senders that are known by name, each loaded when it is first asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ...errors import Misuse
from ..source import Source

__all__ = ["SOURCES", "find_source"]

SOURCES: dict[str, tuple[str, str]] = {}


def find_source(name: str, **options: Any) -> Source:
    """A source by its name, with its own options."""
    if name not in SOURCES:
        raise Misuse(f"There is no source {name!r}; use one of {', '.join(sorted(SOURCES))}, or a Source of your own.")
    module, kind = SOURCES[name]
    source: Source = getattr(import_module(f".{module}", __package__), kind)(**options)
    return source
