"""The same event with another payload: something is changed that its key is not made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from typing import Any

from msgspec import Struct, structs

from ..errors import TwiceproofError
from ..flows.flow import Flow
from .guarded import Guarded

__all__ = ["Given", "other_payload"]

Given = tuple[tuple[Any, ...], dict[str, Any]]


def other_payload(flow: Flow | Guarded, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Given | None:
    """None: whatever could be changed makes it another event."""
    key = flow.key(args, kwargs)
    for changed in _changes(args, kwargs):
        with suppress(TwiceproofError):
            if flow.key(*changed) == key:
                return changed
    return None


def _changes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Given]:
    for number, value in enumerate(args):
        yield from (((*args[:number], other, *args[number + 1 :]), kwargs) for other in _others(value))
    for name, value in kwargs.items():
        yield from ((args, {**kwargs, name: other}) for other in _others(value))


def _others(value: Any) -> Iterator[Any]:
    """What could stand there instead, of the same kind."""
    if isinstance(value, dict):
        yield {**value, "changed_by_prove": True}
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float | Decimal):
        yield value + 1
    elif isinstance(value, str):
        yield f"{value} (changed by prove)"
    elif isinstance(value, list) and value:
        yield [*value, value[-1]]
    elif isinstance(value, Struct):
        fields = value.__struct_fields__
        yield from (
            structs.replace(value, **{name: other}) for name in fields for other in _others(getattr(value, name))
        )
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        yield from (
            dataclasses.replace(value, **{name: other}) for name in names for other in _others(getattr(value, name))
        )
