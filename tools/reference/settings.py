"""The settings of an app: by argument, by environment variable, and otherwise."""

from __future__ import annotations

import inspect

from twiceproof import App
from twiceproof.settings import ENVIRONMENT, Settings

from .described import Field, described
from .table import code, prose, table

__all__ = ["settings"]


def settings(_: str) -> list[str]:
    """What can be set from outside, and what holds where nothing is said."""
    known = inspect.signature(App).parameters
    rows = [_row(field) for field in described(Settings) if field.name in known]
    return table(("argument of `App`", "environment", "otherwise", "meaning"), rows)


def _row(field: Field) -> tuple[str, ...]:
    variable = code(ENVIRONMENT[field.name]) if field.name in ENVIRONMENT else ""
    return code(field.name), variable, code(str(field.default)) if field.default != "" else "empty", prose(field.said)
