"""The fields of a Struct with what is said of each, where its annotation says it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, get_type_hints

import msgspec

__all__ = ["Field", "described"]


class Field(NamedTuple):
    name: str
    default: Any
    said: str


def described(kind: type[msgspec.Struct]) -> Iterator[Field]:
    hints = get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):
        (meta,) = hints[field.name].__metadata__
        yield Field(field.name, field.default, meta.description)
